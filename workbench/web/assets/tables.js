// Tables: sorted, filtered and saved in the browser. Of a long table only the rows in sight are in the page.
"use strict";

(function () {
  const ROW_PX = 28, FEW = 100, AROUND = 12, LETTERS = 16, NAME_LETTERS = 24, SENTENCE = 40, LINE = 28, SAMPLE = 200, PADDING_PX = 24, WORD = /\S{33}/, NAME = /(\S{17,})/, PLACE = /(?<=\w[._/:])(?=\w)/;
  const UNITS = {
    B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400,
    times: 100, // beside changes in percent: `12 times as much` is more than `+424 %`
  };
  const link = (text, href, fixed) => {
    const made = document.createElement("a");
    made.textContent = text;
    made.href = fixed ? href : window.workbench.carried(new URL(href, window.location)).href;
    made.dataset.go = fixed ? "fixed" : "";
    return made;
  };
  const plain = (cell) => (typeof cell === "string" ? cell : cell.map((part) => (typeof part === "string" ? part : part[0])).join(""));

  // The number that a cell is sorted by: `1.5 GiB` is more than `900 MiB`.
  function value(cell) {
    const found = /^[+<>]?\s*(-?[\d\s,.]*\d)\s*([^\s]*)/.exec(plain(cell));
    return found ? Number(found[1].replace(/[\s,]/g, "")) * (UNITS[found[2]] || 1) : -Infinity;
  }

  function element(name, text, style) {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    if (style) made.className = style;
    return made;
  }

  // A long name breaks after its points, underscores and slashes, not within a word.
  const pieces = (word) => word.split(PLACE).flatMap((piece, i) => (i ? [document.createElement("wbr"), piece] : [piece]));
  // Rows of a long table have one line each, which a browser would break there all the same.
  const broken = (text) => text.split(NAME).flatMap((part, i) => (i % 2 ? pieces(part) : part ? [part] : []));

  function build(place) {
    const { title, columns, rows, out, unfiltered } = JSON.parse(place.dataset.table);
    const kept = place.kept && place.kept.title === title ? place.kept : { title, at: null, down: true, find: "" };
    place.kept = kept;
    const table = element("table"), caption = element("caption"), heading = element("div", title), head = element("thead"), body = element("tbody");
    const line = element("tr"), count = element("span", "", "count");
    // Of long tables a sample is enough to find the columns of sentences.
    const texts = columns.map(([, numeric], i) => (numeric ? [] : rows.slice(0, SAMPLE).map((row) => plain(row[i]))));
    const sentences = texts.map((column) => column.some((text) => text.length > SENTENCE && text.includes(" ")));
    const long = rows.length > FEW, parts = long ? (text) => [text] : broken;
    place.classList.toggle("long", long);
    table.setAttribute("aria-rowcount", rows.length + 1);
    let order = [];

    function arrange() {
      const find = kept.find.toLowerCase();
      order = rows.map((_, i) => i).filter((i) => !find || rows[i].some((cell) => plain(cell).toLowerCase().includes(find)));
      if (kept.at !== null && kept.at < columns.length) {
        const numeric = columns[kept.at][1];
        const keys = rows.map((row) => (numeric ? value(row[kept.at]) : plain(row[kept.at])));
        const less = numeric ? (a, b) => keys[a] - keys[b] : (a, b) => keys[a].localeCompare(keys[b], undefined, { numeric: true });
        order.sort((a, b) => (kept.down === Boolean(numeric) ? less(b, a) : less(a, b)) || a - b);
      }
      count.textContent = find ? `${order.length} of ${rows.length}` : rows.length > 12 ? String(rows.length) : "";
      [...line.children].forEach((cell, i) => {
        if (i === kept.at) cell.setAttribute("aria-sort", kept.down === Boolean(columns[i][1]) ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      draw();
    }

    function row(i) {
      const made = element("tr");
      made.setAttribute("aria-rowindex", i + 2);
      rows[order[i]].forEach((cell, c) => {
        const into = element("td", "", columns[c][1] ? "n" : "");
        for (const part of typeof cell === "string" ? [cell] : cell) into.append(...(typeof part === "string" ? parts(part) : [link(...part)]));
        if (long) into.title = plain(cell);
        if (WORD.test(plain(cell))) into.classList.add("breaks");
        if (sentences[c]) into.classList.add("wraps");
        made.append(into);
      });
      return made;
    }

    function space(count) {
      const made = element("tr", "", "space");
      made.setAttribute("aria-hidden", "true");
      made.append(element("td"));
      made.firstChild.colSpan = columns.length;
      made.style.height = `${count * ROW_PX}px`;
      return made;
    }

    function draw() {
      const first = long ? Math.max(0, Math.floor(place.scrollTop / ROW_PX) - AROUND) : 0;
      const last = long ? Math.min(order.length, first + Math.ceil((place.clientHeight || 400) / ROW_PX) + 2 * AROUND) : order.length;
      const shown = [];
      for (let i = first; i < last; i++) shown.push(row(i));
      if (first) shown.unshift(space(first));
      if (last < order.length) shown.push(space(order.length - last));
      body.replaceChildren(...shown);
    }

    columns.forEach(([name, numeric], i) => {
      const cell = element(name ? "th" : "td", "", numeric ? "n" : "");
      // A window too narrow for all columns scrolls to the side instead of breaking texts at each word.
      const longest = Math.max(0, ...texts[i].map((text) => text.length));
      // A sentence in a narrow column would make its row as high as a page.
      const least = sentences[i] ? LINE : !i && longest <= NAME_LETTERS ? longest : Math.min(LETTERS, longest);
      if (least) cell.style.minWidth = `calc(${least}ch + ${PADDING_PX}px)`;
      if (name) {
        cell.scope = "col";
        const button = element("button", name, "sort");
        button.addEventListener("click", () => {
          kept.down = kept.at === i ? !kept.down : true;
          kept.at = i;
          arrange();
        });
        cell.append(button);
      }
      line.append(cell);
    });
    head.append(line);
    heading.append(" ", count);
    if (rows.length > 5 && !unfiltered) {
      const field = element("input", "", "filter");
      Object.assign(field, { type: "search", placeholder: "filter", value: kept.find, maxLength: 100 });
      field.setAttribute("aria-label", `filter ${title}`);
      field.addEventListener("input", () => { kept.find = field.value; place.scrollTop = 0; arrange(); });
      heading.append(field);
    }
    const save = element("button", "CSV", "save");
    save.setAttribute("aria-label", `save ${title} as CSV`);
    save.addEventListener("click", () => saveAll(columns, rows));
    heading.append(save);
    caption.append(heading);
    table.append(caption, head, body);
    place.replaceChildren(table);
    if (out) place.append(element("p", `... and ${out} more, which --json has`, "hint"));
    place.onscroll = long ? () => window.requestAnimationFrame(draw) : null;
    arrange();
  }

  function saveAll(columns, rows) {
    // A cell that a spreadsheet would take for a formula is kept as text by a leading quote.
    const formula = /^[=+@-](?=[^0-9.\s])/, grouped = /^\d{2,3}(,\d{3})+$/;
    const bare = (text) => grouped.test(text) ? text.replaceAll(",", "") : text; // 12,345 is two numbers to many readers
    const cell = (text) => `"${bare(text).replace(formula, "'$&").replaceAll('"', '""')}"`;
    const lines = [columns.map(([name]) => name), ...rows.map((row) => row.map(plain))];
    const made = document.createElement("a");
    made.href = URL.createObjectURL(new Blob([lines.map((line) => line.map(cell).join(",")).join("\r\n")], { type: "text/csv" }));
    made.download = "table.csv";
    made.click();
    URL.revokeObjectURL(made.href);
  }

  const all = (node) => (node.matches && node.matches("[data-table]") ? [node] : node.querySelectorAll ? [...node.querySelectorAll("[data-table]")] : []);
  new MutationObserver((changes) => {
    const places = new Set();
    for (const change of changes) {
      if (change.type === "attributes") places.add(change.target);
      else for (const node of change.addedNodes) all(node).forEach((place) => places.add(place));
    }
    for (const place of places) if (place.isConnected && place.dataset.table) build(place);
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-table"] });
})();
