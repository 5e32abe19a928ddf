// What needs the browser itself: the window of a zoom in the address, the clipboard, themes, tables as CSV, dropped files.
"use strict";

// The part of the next page to scroll to; a zoom, which changes the address as well, scrolls nowhere.
let sought = window.location.hash.slice(1);

// Scrolls to the part of a page that its address names, again and again for a while: charts come late and move what is
// below them. Whoever scrolls meanwhile is left alone.
let scrolling = 0;
for (const own of ["wheel", "keydown", "pointerdown"]) document.addEventListener(own, () => { scrolling = 0; });

function show(name) {
  const part = document.getElementById(name);
  if (part) (part.closest("figure") || part).scrollIntoView({ block: "start" });
  scrolling -= 1;
  if (scrolling > 0) window.setTimeout(() => show(name), 150);
}

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  workbench: {
    // The window that is in sight goes into the address and into the links that lead on. replaceState does not wake
    // Dash, so that the page is not asked for again. The field for steps is set by hand: as an output of this callback
    // it would close a circle, which Dash leaves out without a word.
    carry(shown) {
      const put = (url, values) => {
        for (const name of ["from", "to", "steps"]) url.searchParams.delete(name);
        for (const [name, value] of Object.entries(values)) url.searchParams.set(name, value);
        return url;
      };
      window.history.replaceState(window.history.state, "", put(new URL(window.location), shown.own));
      for (const link of document.querySelectorAll("a[data-go='']")) {
        const stays = link.pathname === window.location.pathname;
        link.href = put(new URL(link.href), stays ? shown.own : shown.steps ? { steps: shown.steps } : {});
      }
      if (sought) {
        scrolling = 20;
        show(sought);
        sought = "";
      }
      window.dash_clientside.set_props("steps", { value: shown.steps });
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

  // Dash answers a zoom by drawing the chart once more as it is, and only then asks for what is in the window. Of a chart
  // that is zoomed the server is asked at once instead; before Dash listens, it is left to Dash.
  function askAtOnce(event) {
    const figure = event.target.closest && event.target.closest("figure[data-zooms]");
    const graph = figure && figure.querySelector(".js-plotly-plot");
    if (!graph || graph.asksAtOnce || graph.classList.contains("dash-graph--pending")) return;
    graph.asksAtOnce = true;
    graph.removeAllListeners("plotly_relayout");
    graph.on("plotly_relayout", (change) => window.dash_clientside.set_props(graph.parentElement.id, { relayoutData: change }));
  }
  for (const gesture of ["pointerdown", "wheel", "keydown"]) {
    document.addEventListener(gesture, askAtOnce, { capture: true, passive: true });
  }

  // A chart that has the focus is moved and zoomed by keys, as by a mouse: Plotly then tells Dash of either alike.
  function zoomByKey(event) {
    const figure = event.target.closest && event.target.closest("figure[data-zooms]");
    const graph = figure && figure.querySelector(".js-plotly-plot");
    const by = { ArrowLeft: [-0.25, -0.25], ArrowRight: [0.25, 0.25], "+": [0.25, -0.25], "=": [0.25, -0.25], "-": [-0.5, 0.5] };
    if (!graph || event.ctrlKey || event.metaKey || !(event.key in by || event.key === "0")) return;
    event.preventDefault();
    if (event.key === "0") {
      window.Plotly.relayout(graph, { "xaxis.autorange": true });
      return;
    }
    const [low, high] = graph._fullLayout.xaxis.range.map(Number);
    const [left, right] = by[event.key].map((part) => part * (high - low));
    window.Plotly.relayout(graph, { "xaxis.range": [low + left, high + right] });
  }
  document.addEventListener("keydown", zoomByKey);

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

  // Within the dashboard a link changes the address only. Dash listens to what a browser says when one goes back.
  function follow(event) {
    const link = event.target.closest && event.target.closest("a[data-go]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const turns = link.pathname !== window.location.pathname;
    window.history.pushState({}, "", link.href);
    sought = link.hash.slice(1);
    window.dispatchEvent(new PopStateEvent("popstate"));
    if (turns) window.scrollTo(0, 0);
  }

  document.addEventListener("click", follow);
  document.addEventListener("click", (event) => {
    if (event.target.id === "copy") {
      navigator.clipboard.writeText(window.location.href).then(() => say("Link copied."), () => say(window.location.href));
    } else if (event.target.id === "theme") {
      turnTheme();
    } else if (event.target.dataset && event.target.dataset.save) {
      saveTable(event.target);
    }
  });

  async function open(files) {
    // The first folder of the address has a random name, which the cookie depends on.
    const place = `/${window.location.pathname.split("/")[1]}/drop/${crypto.getRandomValues(new Uint32Array(4)).join("")}`;
    const headers = { "X-Workbench": "drop" };
    for (const file of files) {
      say(`Sending ${file.name} ...`);
      await answered(fetch(`${place}/${encodeURIComponent(file.name)}`, { method: "PUT", headers, body: file }));
    }
    say("Analysing ...");
    const told = await answered(fetch(place, { method: "POST", headers }));
    window.location.assign(told.at);
  }

  async function answered(request) {
    const answer = await request;
    const told = await answer.json().catch(() => ({ error: `the server answered ${answer.status}`, hint: "Reload the page" }));
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
