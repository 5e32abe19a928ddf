// The names in a tree of live memory or calls, shortened to the room that each part has on the screen.
"use strict";

(function () {
  const FONT_PX = 11;
  const PADDING = 10;
  const FEWEST = 4;
  const CUT = "…";
  // Beginnings that say least: folder and file of `folder/file.py function:line`, folder and kind of
  // `folder/file.py(line): function` and `nn.Module: Linear_3`, the namespace of `aten::mm`.
  const LEAST = [/^(?:[^\s/]+\/)+(?=\S+\.\w+[ (])/, /^\S+\.\w+ (?=\S)/, /^.*: (?=\S)/, /^(?:\w+::)+(?=\w)/];
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${FONT_PX}px system-ui, sans-serif`;
  const fits = (text, width) => pen.measureText(text).width <= width;

  // Plotly reads names as HTML, so that the server has escaped them.
  const readable = (text) => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // As much of a name as has room, without what says least.
  function shortened(name, width) {
    if (fits(name, width)) return name;
    const parts = LEAST.reduce((parts, least) => [...parts, parts.at(-1).replace(least, "")], [name]);
    const part = parts.find((one) => fits(one, width)), text = parts.at(-1);
    if (part) return part;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (fits(text.slice(0, middle) + CUT, width)) low = middle; else high = middle - 1;
    }
    return low + 1 >= FEWEST ? text.slice(0, low) + CUT : "";
  }

  // The figure with names that fit into a chart of this width; the first value is that of the root, which is as wide.
  function fitted(figure, width) {
    const [tree] = figure.data, [whole] = tree.values;
    const text = tree.labels.map((name, i) => escaped(shortened(readable(name), (width * tree.values[i]) / Math.max(1, whole) - PADDING)));
    return { ...figure, data: [{ ...tree, text, textfont: { ...tree.textfont, size: FONT_PX } }] };
  }

  // A chart of another width, as in a smaller window or beside hidden details, has room for other names.
  let drawn = { figure: null, width: 0 };
  const chart = () => document.querySelector("figure[data-tree]");
  const observer = new ResizeObserver(() => {
    const width = chart()?.clientWidth;
    if (!width || width === drawn.width || !drawn.figure) return;
    drawn.width = width;
    window.dash_clientside.set_props(chart().querySelector(".dash-graph").id, { figure: fitted(drawn.figure, width) });
  });

  function fit(figure) {
    drawn = { figure, width: chart().clientWidth };
    observer.disconnect();
    observer.observe(chart());
    return fitted(figure, drawn.width);
  }

  // A click on a part goes to the address in which it is selected; the timeline above may have changed the address.
  function choose(click) {
    if (!click) return;
    const url = new URL(window.location), [node] = click.points[0].customdata;
    if (node < 0) url.searchParams.delete("under"); else url.searchParams.set("under", node);
    if (url.href !== window.location.href) window.workbench.go(url);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { tree: { fit, choose } });
})();
