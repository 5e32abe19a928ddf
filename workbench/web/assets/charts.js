// Legends and a shared crosshair as in Grafana, and keys for the tree of live memory.
"use strict";

(function () {
  // A click in a legend shows one series alone, and another click all of them again; with Ctrl or Shift it hides or
  // shows one series. Plotly has a setting for either, and reads it after the click.
  document.addEventListener("pointerdown", (event) => {
    const graph = event.target.closest && event.target.closest(".legend") && event.target.closest(".js-plotly-plot");
    const legend = graph && graph._fullLayout && graph._fullLayout.legend;
    if (!legend || !legend.itemclick) return;
    legend.itemclick = event.ctrlKey || event.metaKey || event.shiftKey ? "toggle" : "toggleothers";
  }, { capture: true });

  // Charts with one axis, such as those of the steps: the place under the pointer is shown in all of them.
  const others = (graph) => {
    const all = [...document.querySelectorAll("figure[data-crosshair] .js-plotly-plot")];
    return all.includes(graph) ? all.filter((other) => other !== graph) : [];
  };
  document.addEventListener("pointerover", (event) => {
    const graph = event.target.closest && event.target.closest(".js-plotly-plot");
    if (!graph || graph.crosshair || !others(graph).length) return;
    graph.crosshair = true;
    graph.on("plotly_hover", ({ points }) => {
      for (const other of others(graph)) window.Plotly.Fx.hover(other, { xval: points[0].x }, "xy", true);
    });
    graph.on("plotly_unhover", () => { for (const other of others(graph)) window.Plotly.Fx.unhover(other); });
  });

  // Keys move from part to part of a tree, as in other flame graphs. Plotly keeps the node of a part at its element.
  let at = "";

  const partsOf = (figure) => [...figure.querySelectorAll("g.slice")].filter((part) => part.__data__);
  const idOf = (part) => String(part.__data__.data.data.id);
  const levelOf = (part) => part.__data__.depth;

  function next(parts, here, key) {
    const node = here.__data__, middle = (part) => (part.__data__.x0 + part.__data__.x1) / 2;
    if (key === "ArrowUp") return parts.find((part) => part.__data__ === node.parent);
    if (key === "ArrowDown") {
      const below = parts.filter((part) => part.__data__.parent === node);
      return below.sort((a, b) => b.__data__.value - a.__data__.value)[0];
    }
    const level = parts.filter((part) => levelOf(part) === levelOf(here)).sort((a, b) => middle(a) - middle(b));
    return level[level.indexOf(here) + (key === "ArrowLeft" ? -1 : 1)];
  }

  function mark(parts, chosen) {
    for (const part of parts) part.classList.toggle("chosen", part === chosen);
    chosen.parentElement.append(chosen); // over its neighbours, which would cover its frame
    at = idOf(chosen);
    const { x, y, width, height } = chosen.getBoundingClientRect();
    const middle = { bubbles: true, clientX: x + width / 2, clientY: y + height / 2 };
    for (const other of parts) if (other !== chosen) other.dispatchEvent(new MouseEvent("mouseout", middle));
    chosen.dispatchEvent(new MouseEvent("mouseover", middle));
  }

  // A zoom makes the page anew, and with it the chart that had the focus.
  function keepFocus() {
    const until = Date.now() + 3000;
    const timer = window.setInterval(() => {
      const figure = document.querySelector("figure[data-tree]");
      if (figure && document.activeElement === document.body) figure.focus({ preventScroll: true });
      if (Date.now() > until) window.clearInterval(timer);
    }, 50);
  }

  document.addEventListener("keydown", (event) => {
    const figure = event.target.closest && event.target.closest("figure[data-tree]");
    if (!figure || event.ctrlKey || event.metaKey || event.altKey) return;
    const parts = partsOf(figure), root = parts.find((part) => levelOf(part) === 0);
    if (!root || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Enter", "Backspace"].includes(event.key)) return;
    event.preventDefault();
    const here = parts.find((part) => idOf(part) === at);
    if (event.key.startsWith("Arrow")) {
      mark(parts, here ? next(parts, here, event.key) || here : root);
      return;
    }
    keepFocus();
    (event.key === "Enter" && here ? here : root).dispatchEvent(new MouseEvent("click", { bubbles: true }));
  });
})();
