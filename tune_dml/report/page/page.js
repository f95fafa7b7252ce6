"use strict";
(() => {
  // Show tooltips at once, also on touch; the browser would show them after a second.
  const label = document.createElement("div");
  label.className = "tip";
  label.setAttribute("aria-hidden", "true");
  label.hidden = true;
  document.body.append(label);
  const texts = new Map();
  for (const title of document.querySelectorAll("figure svg title")) {
    texts.set(title.parentNode, title.textContent);
    title.remove();
  }
  const near = (event) => {
    const text = texts.get(event.target);
    label.hidden = !text;
    if (!text) return;
    label.textContent = text;
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - label.offsetWidth - 8);
    label.style.left = `${Math.max(8, left)}px`;
    label.style.top = `${event.clientY + 18}px`;
  };
  document.addEventListener("pointermove", near, { passive: true });
  document.addEventListener("pointerdown", near, { passive: true });
  document.addEventListener("scroll", () => { label.hidden = true; }, { passive: true });

  // A link to an element in closed details opens them.
  const reveal = () => {
    let name = location.hash.slice(1);
    try { name = decodeURIComponent(name); } catch { /* not an address of this page, such as `#%` */ }
    const target = name && document.getElementById(name);
    if (!target) return;
    let closed = false;
    for (let part = target; part; part = part.parentElement) {
      if (part.localName === "details" && !part.open) { part.open = true; closed = true; }
    }
    if (closed) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((part) => !part.querySelector(".searchable"));
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of opened) part.open = false; });

  // Add a copy button to each command.
  for (const command of document.querySelectorAll("pre.command")) {
    if (!navigator.clipboard) break;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command.querySelector("code").textContent);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    command.append(button);
  }

  // Tables of trials can be sorted by a heading and searched by words.
  for (const table of document.querySelectorAll("table.searchable")) {
    const body = table.tBodies[0], rows = [...body.rows];
    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = `search ${rows.length} rows`;
    search.setAttribute("aria-label", `Search ${rows.length} rows`);
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    table.parentElement.before(search);
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const key = (row) => {
        const cell = row.cells[place], value = cell.dataset.value;
        return value === undefined ? cell.textContent : Number(value);
      };
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const compare = (a, b) => (typeof a === "number" && typeof b === "number")
          ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
        const sorted = rows.map((row) => [key(row), row]).sort((a, b) => (up ? 1 : -1) * compare(a[0], b[0]));
        body.append(...sorted.map((pair) => pair[1]));
      });
    });
  }
})();
