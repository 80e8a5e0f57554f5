"""The programs and commands of a page are found, and their output is compared with the output that the page shows."""

from __future__ import annotations

import pytest

from tests.newcomer.story import Step, difference, steps_of

PAGE = """
```python
# first.py
print(1)
```

```text
1
```

Then:

```sh
ls
```

```sh
one
two
```
"""


def test_a_page_is_read_in_order() -> None:
    """Programs are saved under the name in their first line; each command is a step; a text belongs to the step before
    it."""
    assert steps_of(PAGE) == [
        Step("python first.py", "1\n", 2, "# first.py\nprint(1)\n", "first.py"),
        Step("ls", "", 14),
        Step("one", "", 18),
        Step("two", "", 19),
    ]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```text\n1\n```\n", "line 1: expected the text to follow"),
        ("```sh\none\ntwo\n```\n```text\n1\n```\n", "line 5: expected the text to follow"),
        ("```sh\none\n```\n```text\n1\n```\n```text\n2\n```\n", "line 7: expected the text to follow"),
        ("```python\nprint(1)\n```\n", "line 1: expected the program to begin with"),
        ("```console\n$ ls\n```\n", "line 1: expected a block of python, sh or text, got: console"),
    ],
)
def test_a_page_that_cannot_be_followed_is_refused(page: str, words: str) -> None:
    """Three faults are errors with a line number: a block of text that does not follow one program or one command, a
    program without a name, and a block of an unknown kind."""
    with pytest.raises(ValueError, match=words):
        steps_of(page)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("", ""),
        ("a\n", "a\n"),
        ("a ... c\n", "a b c\n"),
        ("...\nc\n", "a\nb\nc\n"),
        ("a\n...\n", "a\n"),
        ("(a.b)\n", "(a.b)\n"),
    ],
)
def test_equal_output_has_no_difference(shown: str, printed: str) -> None:
    """`...` stands for any text within a line. A line with only `...` stands for any number of lines."""
    assert not difference(Step("x", shown, 1), printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("", "a\n"),
        ("a\n", ""),
        ("a\n", "a\nb\n"),
        ("a ... c\n", "a b\nc\n"),
        ("...\nc\n", "a\nb\n"),
        ("(a.b)\n", "(a-b)\n"),
        ("a\n", "a"),
    ],
)
def test_other_output_is_a_difference(shown: str, printed: str) -> None:
    """Output that the page does not show is a difference. So is output that the page shows and that is not printed."""
    assert difference(Step("x", shown, 1), printed)
