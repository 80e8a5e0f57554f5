// Looks at the page as a person would who cannot see well, uses no mouse or has a small screen. Returns the findings as
// texts, none when all is well. `options`: {contrast: bool, structure: bool, targets: bool}.
(options) => {
  const found = [];
  const visible = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const boxOf = (element) => element.getBoundingClientRect();
  const onScreen = (element) => {
    const box = boxOf(element);
    return visible(element) && box.width > 1 && box.height > 1 && box.right > 0 && box.bottom > 0;
  };
  const nameOf = (element) => {
    const text = (element.textContent || element.value || "").trim().replace(/\s+/g, " ").slice(0, 40);
    const classes = typeof element.className === "string" && element.className ? "." + element.className : "";
    return `<${element.tagName.toLowerCase()}${element.id ? "#" + element.id : ""}${classes}> "${text}"`;
  };

  // ---- contrast (WCAG 1.4.3 and 1.4.11)
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
    willReadFrequently: true,
  });
  const seen = new Map();
  const colour = (text) => {
    if (!seen.has(text)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = text;
      pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      seen.set(text, [r, g, b, a / 255]);
    }
    return seen.get(text);
  };
  const over = (front, back) => [0, 1, 2].map((at) => front[at] * front[3] + back[at] * (1 - front[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(colour(getComputedStyle(one).backgroundColor));
    const page = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return layers.reverse().reduce((back, front) => over(front, back), page);
  };
  const light = ([r, g, b]) => {
    const part = (value) => ((value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const fadedBy = (element) => {
    let faded = 1;
    for (let one = element; one; one = one.parentElement) faded *= Number(getComputedStyle(one).opacity);
    return faded;
  };
  const checkText = (element, front, what) => {
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const back = behind(element);
    const text = colour(front);
    const has = ratio(over([...text.slice(0, 3), text[3] * fadedBy(element)], back), back);
    if (has < least) found.push(`contrast ${has.toFixed(2)} < ${least}: ${what} of ${nameOf(element)}`);
  };
  const contrast = () => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let count = 0;
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const parent = node.parentElement;
      if (!node.data.trim() || parent.closest("script, style, title, option") || !visible(parent)) continue;
      const style = getComputedStyle(parent);
      checkText(parent, parent.closest("svg") ? style.fill : style.color, "text");
      count += 1;
    }
    for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
      if (!visible(field)) continue;
      checkText(field, getComputedStyle(field).color, "value");
      if (field.placeholder) checkText(field, getComputedStyle(field, "::placeholder").color, "placeholder");
      const back = behind(field.parentElement);
      const edge = ratio(over(colour(getComputedStyle(field).borderTopColor), back), back);
      if (!/checkbox|radio/.test(field.type) && edge < 3) found.push(`contrast ${edge.toFixed(2)} < 3: edge of ${nameOf(field)}`);
    }
    if (!count) found.push("the page has no visible text");
  };

  // ---- structure
  const labelOf = (element) => {
    const ids = (element.getAttribute("aria-labelledby") || "").split(/\s+/).filter(Boolean);
    const texts = ids.map((id) => document.getElementById(id)?.textContent || "");
    const own = [element.getAttribute("aria-label"), ...texts, ...[...(element.labels || [])].map((one) => one.textContent)];
    return own.filter(Boolean).join(" ").trim();
  };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const structure = () => {
    if (!document.documentElement.lang) found.push("<html> has no lang");
    if (!document.title.trim() || document.title.trim().startsWith("·")) found.push(`poor title "${document.title}"`);
    if (all("h1").length !== 1) found.push(`${all("h1").length} h1`);
    let level = 0;
    for (const heading of all("h1, h2, h3, h4, h5, h6").filter(visible)) {
      const next = Number(heading.tagName[1]);
      if (next > level + 1) found.push(`h${level} is followed by ${nameOf(heading)}`);
      if (!heading.textContent.trim()) found.push(`an empty ${nameOf(heading)}`);
      level = next;
    }
    for (const [selector, name] of [["main", "main"], ["body > header", "header"], ["body > footer", "footer"]])
      if (all(selector).length !== 1) found.push(`${all(selector).length} ${name}`);
    for (const nav of all("nav")) if (!labelOf(nav)) found.push("a nav without a label");
    const ids = all("[id]").map((one) => one.id);
    for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at))) found.push(`the id ${id} twice`);
    for (const attribute of ["aria-labelledby", "aria-describedby", "for", "list", "aria-controls"])
      for (const one of all(`[${attribute}]`))
        for (const id of one.getAttribute(attribute).split(/\s+/))
          if (!document.getElementById(id)) found.push(`${attribute}="${id}" of ${nameOf(one)} names nothing`);
    for (const field of all("input:not([type=hidden]):not([type=submit]), select, textarea"))
      if (!labelOf(field)) found.push(`no label: ${nameOf(field)} ${field.name}`);
    for (const one of all("a, button, summary, [role=button]"))
      if (!(one.textContent.trim() || labelOf(one))) found.push(`no name: ${nameOf(one)} ${one.outerHTML.slice(0, 80)}`);
    for (const one of all("a:not([href])")) found.push(`a link that leads nowhere: ${nameOf(one)}`);
    for (const one of all("p, li, dt, h2 + ul:empty"))
      if (!one.childNodes.length) found.push(`an empty ${nameOf(one)}: perhaps the browser has moved what was in it`);
    for (const one of all("img:not([alt])")) found.push(`no alt: ${nameOf(one)}`);
    for (const one of all("svg"))
      if (one.getAttribute("aria-hidden") !== "true" && !(one.getAttribute("role") === "img" && labelOf(one)))
        found.push(`no name: ${nameOf(one)}`);
    for (const table of all("table")) {
      if (!table.querySelector("th")) found.push(`a table without headers: ${nameOf(table)}`);
      for (const cell of table.querySelectorAll("th")) {
        if (!cell.scope) found.push(`no scope: ${nameOf(cell)}`);
        if (!cell.textContent.trim()) found.push(`an empty header: ${nameOf(cell)}`);
      }
      const widths = new Set([...table.rows].map((row) => [...row.cells].reduce((sum, cell) => sum + cell.colSpan, 0)));
      if (widths.size > 1) found.push(`rows of ${[...widths].join(" and ")} cells: ${nameOf(table)}`);
      if (!table.closest(".scroll")) found.push(`a table outside .scroll: ${nameOf(table)}`);
    }
    for (const one of all("[tabindex]")) if (one.tabIndex > 0) found.push(`tabindex ${one.tabIndex}: ${nameOf(one)}`);
    for (const one of all("[style]")) found.push(`attribute style: ${nameOf(one)}`);
    for (const one of all("*"))
      for (const { name } of one.attributes) if (name.startsWith("on")) found.push(`attribute ${name}: ${nameOf(one)}`);
    for (const form of all("form"))
      if (form.method === "post" && !form.querySelector("[name=csrf]") && !form.querySelector("[type=password]"))
        found.push(`a form without a token: ${form.action}`);
  };

  // ---- size of what is pressed (WCAG 2.5.8), with its exception for links within text; and the width of the page
  const targets = () => {
    for (const one of all("a, button, input:not([type=hidden]), select, textarea, summary")) {
      if (!onScreen(one)) continue;
      const box = boxOf(one);
      const within = one.tagName === "A" && getComputedStyle(one).display === "inline" &&
        [...one.parentElement.childNodes].some((other) => other !== one && other.nodeType === 3 && other.data.trim().length > 1);
      const width = /checkbox|radio/.test(one.type) ? Math.max(box.width, ...[...one.labels].map((label) => boxOf(label).width)) : box.width;
      const height = /checkbox|radio/.test(one.type) ? Math.max(box.height, ...[...one.labels].map((label) => boxOf(label).height)) : box.height;
      if (!within && (height < 23.9 || width < 23.9))
        found.push(`a target of ${box.width.toFixed(0)} x ${box.height.toFixed(0)}: ${nameOf(one)}`);
    }
    const page = document.scrollingElement;
    if (page.scrollWidth > page.clientWidth) {
      const inScroller = (one) => {
        for (let up = one; up && up !== document.body; up = up.parentElement)
          if (up !== one && getComputedStyle(up).overflowX !== "visible") return true;
        return false;
      };
      const wide = all("body *").filter((one) => visible(one) && boxOf(one).right > page.clientWidth + 1 && !inScroller(one));
      found.push(`${page.scrollWidth} px wide on a screen of ${page.clientWidth}: ${wide.slice(-3).map(nameOf).join("; ")}`);
    }
  };

  if (options.contrast) contrast();
  if (options.structure) structure();
  if (options.targets) targets();
  return [...new Set(found)];
}
