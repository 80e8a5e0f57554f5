// Theme, keys, and nothing else: the pages are complete without it. Live updates come from htmx and its extension.
(() => {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;

  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  document.addEventListener("DOMContentLoaded", () => {
    const theme = document.querySelector("[data-theme-switch]");
    if (theme) {
      theme.hidden = false;
      theme.addEventListener("click", () => {
        root.dataset.theme = dark() ? "light" : "dark";
        localStorage.setItem("theme", root.dataset.theme);
      });
    }
  });

  // "g" and then the first letter of a page's name opens it; "/" goes to the search; "?" lists the keys.
  const pages = () => {
    const found = new Map();
    for (const link of document.querySelectorAll("nav a")) {
      const letter = [...link.textContent.trim().toLowerCase()].find((one) => /[a-z]/.test(one) && !found.has(one));
      if (letter) found.set(letter, link);
    }
    return found;
  };

  const help = () => {
    const box = document.createElement("dialog");
    const list = document.createElement("ul");
    const line = (keys, what) => {
      const item = document.createElement("li");
      item.append(Object.assign(document.createElement("kbd"), { textContent: keys }), ` ${what}`);
      list.append(item);
    };
    line("/", "search");
    for (const [letter, link] of pages()) line(`g ${letter}`, link.textContent);
    line("Esc", "close this");
    const close = Object.assign(document.createElement("button"), { textContent: "Close" });
    close.addEventListener("click", () => box.close());
    box.setAttribute("aria-label", "Keys");
    box.append(list, close);
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  };

  let waiting = false;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (waiting) {
      waiting = false;
      const link = pages().get(event.key);
      if (link) link.click();
    } else if (event.key === "g") {
      waiting = true;
      setTimeout(() => (waiting = false), 1500);
    } else if (event.key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) {
        event.preventDefault();
        search.focus();
      }
    } else if (event.key === "?") {
      help();
    }
  });
})();
