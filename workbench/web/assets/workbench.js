// What needs the browser itself: the window of a zoom in the address, the clipboard, themes, tables as CSV, dropped files.
"use strict";

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  workbench: {
    // Plotly spells a zoom in three ways; replaceState does not wake Dash, so the page is not asked for again.
    remember(relayout) {
      const change = relayout || {};
      const [low, high] = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      const address = new URL(window.location);
      if (low !== undefined) {
        address.searchParams.set("from", Math.max(0, Math.floor(low)));
        address.searchParams.set("to", Math.ceil(high));
      } else if (change["xaxis.autorange"]) {
        address.searchParams.delete("from");
        address.searchParams.delete("to");
      } else {
        return;
      }
      window.history.replaceState(window.history.state, "", address);
    },
  },
});

(function () {
  const root = document.documentElement;
  const say = (text) => { document.getElementById("said").textContent = text; };

  const chosen = window.localStorage.getItem("workbench-theme");
  if (chosen) root.dataset.theme = chosen;

  function turnTheme() {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    window.localStorage.setItem("workbench-theme", root.dataset.theme);
  }

  function saveTable(button) {
    const rows = [...button.closest("table").querySelectorAll("tr")];
    // A cell that a spreadsheet would take for a formula is kept as text by a leading quote.
    const cell = (c) => `"${c.textContent.replace(/^[=+@-](?=[^0-9.\s])/, "'$&").replaceAll('"', '""')}"`;
    const text = rows.map((row) => [...row.children].map(cell).join(",")).join("\r\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "table.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  document.addEventListener("click", (event) => {
    if (event.target.id === "copy") {
      navigator.clipboard.writeText(window.location.href).then(() => say("link copied"), () => say(window.location.href));
    } else if (event.target.id === "theme") {
      turnTheme();
    } else if (event.target.dataset && event.target.dataset.save) {
      saveTable(event.target);
    }
  });

  async function open(files) {
    const place = `/drop/${crypto.getRandomValues(new Uint32Array(4)).join("")}`;
    const headers = { "X-Workbench": "drop" };
    for (const file of files) {
      say(`sending ${file.name} ...`);
      await answered(fetch(`${place}/${encodeURIComponent(file.name)}`, { method: "PUT", headers, body: file }));
    }
    say("reading ...");
    const told = await answered(fetch(place, { method: "POST", headers }));
    window.location.assign(told.at);
  }

  async function answered(request) {
    const answer = await request;
    const told = await answer.json();
    if (!answer.ok) throw new Error(`${told.error}. ${told.hint}`);
    return told;
  }

  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    const files = [...event.dataTransfer.files];
    if (files.length) open(files).catch((error) => say(error.message));
  });
})();
