// The theme, the keys, and the stream of live updates. Without this script a page can be read too. htmx puts updates in.
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

  // The stream of a page is open only while somebody sees the page: a browser keeps at most six connections to a server.
  // A stream whose connection breaks is opened again.
  class SeenStream extends EventTarget {
    readyState = EventSource.OPEN; // htmx must not open it again: this class does
    #url;
    #inner = null;
    #ended = false;

    constructor(url) {
      super();
      this.#url = url;
      document.addEventListener("visibilitychange", () => this.#follow());
      this.#follow();
    }

    close() {
      this.#ended = true;
      this.#follow();
    }

    again() {
      this.#drop();
      this.#follow();
    }

    #drop() {
      this.#inner?.close();
      this.#inner = null;
    }

    #follow() {
      if (this.#ended || document.visibilityState === "hidden") return this.#drop();
      if (this.#inner) return;
      const inner = (this.#inner = new EventSource(this.#url));
      inner.onmessage = ({ data }) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.onerror = () => {
        if (inner.readyState === EventSource.CLOSED) setTimeout(() => this.#inner === inner && this.again(), 2000);
      };
    }
  }

  // An element with more content than it shows gets a tabindex, so that arrow keys scroll it in every browser.
  const markScrolling = () => {
    [...document.querySelectorAll(".scroll, pre")].forEach((one, number) => {
      const heading = one.closest("section")?.querySelector("h2") ?? document.querySelector("h1");
      const given = { tabindex: "0", role: "region", "aria-label": `${heading?.textContent}, part ${number + 1}` };
      const scrolls = one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight;
      for (const [name, value] of Object.entries(given)) scrolls ? one.setAttribute(name, value) : one.removeAttribute(name);
    });
  };
  addEventListener("resize", markScrolling);
  document.addEventListener("DOMContentLoaded", markScrolling);

  // An update keeps the focus, the scroll positions and the open details. It waits while text is selected.
  let stream = null;
  let missed = false;
  let place = null;
  const live = () => document.getElementById("live");
  const nameOf = (one) => one.tagName + (one.id || one.getAttribute("href") || one.textContent.trim());
  const alike = (name) => [...live().querySelectorAll("a, button, summary, input, [tabindex]")].filter((one) => nameOf(one) === name);
  const selecting = () => {
    const chosen = getSelection();
    return !chosen.isCollapsed && live()?.contains(chosen.anchorNode);
  };
  const placeNow = () => {
    const active = document.activeElement;
    const name = live().contains(active) ? nameOf(active) : "";
    return {
      name,
      at: name ? alike(name).indexOf(active) : 0,
      scrolled: [...live().querySelectorAll(".scroll")].map((one) => one.scrollLeft),
      unfolded: [...live().querySelectorAll("details")].map((one) => one.open),
    };
  };
  const restore = ({ name, at, scrolled, unfolded }) => {
    [...live().querySelectorAll("details")].forEach((one, number) => (one.open = unfolded[number] ?? one.open));
    [...live().querySelectorAll(".scroll")].forEach((one, number) => (one.scrollLeft = scrolled[number] ?? 0));
    if (name) alike(name)[at]?.focus({ preventScroll: true });
  };
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    missed = selecting();
    if (missed) event.preventDefault();
    else place = placeNow();
  });
  document.addEventListener("htmx:sseMessage", () => {
    if (place) restore(place);
    markScrolling();
  });
  document.addEventListener("selectionchange", () => {
    if (missed && !selecting()) {
      missed = false;
      stream.again();
    }
  });
  document.addEventListener("DOMContentLoaded", () => {
    if (window.htmx) htmx.createEventSource = (url) => (stream = new SeenStream(url));
  });

  // "g" and then the first letter of a page's name opens it; "/" goes to the search; "?" lists the keys.
  const pages = () => {
    const found = new Map();
    for (const link of document.querySelectorAll("header nav a")) {
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
    if (event.key === "Escape" && event.target.matches("input[type=search]")) event.target.blur();
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
