// What needs the browser itself: the window of a zoom in the address, the clipboard, themes, dropped files.
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

// The window that is in sight: `own` stands in this page's address, `steps` in links to other pages.
let inSight = { own: {}, steps: "" };

function put(url, values) {
  for (const name of ["from", "to", "steps"]) url.searchParams.delete(name);
  for (const [name, value] of Object.entries(values)) url.searchParams.set(name, value);
  return url;
}

// What the timeline of a trace writes into the address itself, so that links of the page do not know it.
const TIMELINE = ["find", "pick", "pin", "fold"];

function keepTimeline(url) {
  const now = new URL(window.location).searchParams;
  for (const name of TIMELINE) {
    if (now.has(name)) url.searchParams.set(name, now.get(name));
    else url.searchParams.delete(name);
  }
}

window.workbench = {
  // The address of a link that leads on, with the window that is in sight.
  carried(url) {
    const stays = url.pathname === window.location.pathname;
    if (stays && document.querySelector("[data-timeline]")) keepTimeline(url);
    return put(url, stays ? inSight.own : inSight.steps ? { steps: inSight.steps } : {});
  },
  // Changes the address as a link does; Dash listens to what a browser says when one goes back.
  go(url) {
    const turns = url.pathname !== window.location.pathname;
    window.history.pushState({}, "", url.href);
    sought = url.hash.slice(1);
    window.dispatchEvent(new PopStateEvent("popstate"));
    if (turns) document.getElementById("page").scrollTo(0, 0);
  },
};

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  workbench: {
    // A click into a chart or a typed text leads to another address, which the server computed.
    follow(search) {
      window.workbench.go(new URL(search, window.location));
    },
    // A zoom into a chart below the timeline moves the timeline to the same time.
    move(moved) {
      const timeline = document.querySelector("[data-timeline]")?.timeline;
      if (timeline && moved) moved.span ? timeline.show(...moved.span) : timeline.showAll();
    },
    // The window that is in sight goes into the address and into the links that lead on. replaceState does not wake
    // Dash, so that the page is not asked for again. What is typed into the field for steps goes another way than this
    // value: the server could not tell one from the other.
    carry(shown) {
      inSight = shown;
      window.history.replaceState(window.history.state, "", put(new URL(window.location), shown.own));
      for (const link of document.querySelectorAll("a[data-go='']")) link.href = window.workbench.carried(new URL(link.href)).href;
      for (const link of document.querySelectorAll("nav.pages a")) {
        if (link.pathname === window.location.pathname) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
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

  // Dash has not heard of what the charts put into the address; the server needs it to draw the page anew.
  const tellAddress = () => window.dash_clientside.set_props("here", { data: window.location.search });

  // The server draws charts in the theme that a cookie names, and with fewer ticks and columns where a second one says
  // that the window is narrow. The cookies are of this dashboard's folder alone.
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 600px)");
  function setCookie(name, value) {
    document.cookie = `${name}=${value}; path=/${window.location.pathname.split("/")[1]}; SameSite=Strict`;
  }
  function applyTheme() {
    root.dataset.theme = window.localStorage.getItem("workbench-theme") || (system.matches ? "dark" : "light");
    setCookie("workbench-theme", root.dataset.theme);
    setCookie("workbench-narrow", narrow.matches ? "yes" : "no");
  }
  function drawAgain() {
    applyTheme();
    tellAddress();
    window.dash_clientside.set_props("themed", { data: root.dataset.theme });
  }
  applyTheme();
  system.addEventListener("change", drawAgain);
  narrow.addEventListener("change", drawAgain);

  function turnTheme() {
    window.localStorage.setItem("workbench-theme", root.dataset.theme === "dark" ? "light" : "dark");
    drawAgain();
  }

  // The inspector beside a chart can be hidden, on all pages alike. Charts follow the size of the window.
  const applyInspector = (shown) => { root.dataset.inspector = shown ? "shown" : "hidden"; };
  applyInspector(window.localStorage.getItem("workbench-inspector") !== "hidden");

  function turnInspector() {
    const shows = root.dataset.inspector === "hidden", inspector = document.querySelector(".inspector");
    if (!inspector) return;
    const focused = inspector.contains(document.activeElement) || document.activeElement.id === "show-inspector";
    applyInspector(shows);
    window.localStorage.setItem("workbench-inspector", root.dataset.inspector);
    window.dispatchEvent(new Event("resize"));
    if (focused) (shows ? inspector : document.getElementById("show-inspector")).focus({ preventScroll: true });
  }

  // Dash answers a zoom by drawing the chart once more as it is, and only then asks for what is in the window; and it asks
  // for the last change alone, which may be one of the size. Here the server is asked at once, and for zooms alone.
  function askAtOnce(event) {
    const figure = event.target.closest && event.target.closest("figure[data-zooms]");
    const graph = figure && figure.querySelector(".js-plotly-plot");
    if (!graph) return;
    graph.removeAllListeners("plotly_relayout");
    graph.on("plotly_relayout", (change) => {
      if (!Object.keys(change).some((name) => name.startsWith("xaxis"))) return;
      window.dash_clientside.set_props(`${graph.parentElement.id}-zoom`, { data: change });
    });
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

  // Within the dashboard a link changes the address only.
  function follow(event) {
    const link = event.target.closest && event.target.closest("a[data-go]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    window.workbench.go(new URL(link.href));
  }


  document.addEventListener("change", (event) => {
    if (event.target.id === "steps" && event.target.value.trim() !== inSight.steps) {
      tellAddress();
      window.dash_clientside.set_props("typed", { data: event.target.value });
    }
    const link = event.target.matches("select.picker") && event.target.selectedOptions[0];
    if (link) window.workbench.go(window.workbench.carried(new URL(link.value, window.location)));
  });
  document.addEventListener("click", (event) => { if (event.target.id === "reset") tellAddress(); }, { capture: true });
  document.addEventListener("click", follow);
  document.addEventListener("click", (event) => {
    if (event.target.id === "copy") {
      navigator.clipboard.writeText(window.location.href).then(() => say("Link copied."), () => say(window.location.href));
    } else if (event.target.id === "theme") {
      turnTheme();
    } else if (["hide-inspector", "show-inspector"].includes(event.target.id)) {
      turnInspector();
    }
  });

  // The menu of documents closes as menus do: at Escape, which gives the focus back, and at a click elsewhere.
  function closeMenu(event) {
    const menu = document.querySelector("details.save-report[open]");
    if (!menu || (event.type === "click" ? menu.contains(event.target) : event.key !== "Escape")) return;
    menu.open = false;
    if (event.type === "keydown") menu.querySelector("summary").focus();
  }
  document.addEventListener("click", closeMenu);
  document.addEventListener("keydown", closeMenu);

  // Keys of all pages act where nothing takes text. The list of keys opens at `?`, and closes at `?`, Escape, or a click beside it.
  function turnKeys() {
    const keys = document.getElementById("keys");
    if (!keys) return;
    if (keys.open) keys.close(); else keys.showModal();
  }
  const PAGE_KEYS = { "?": turnKeys, q: turnInspector };
  document.addEventListener("keydown", (event) => {
    const takesText = event.target.matches && event.target.matches("input, select, textarea");
    const action = PAGE_KEYS[event.key];
    if (!action || takesText || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
  document.addEventListener("click", ({ target }) => {
    if (["show-keys", "close-keys"].includes(target.id) || (target.id === "keys" && target.open)) turnKeys();
    if (target.id === "skip") document.getElementById("page").focus();
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

  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const files = [...event.dataTransfer.files];
    if (files.length) open(files).catch((error) => say(error.message));
  });
})();
