// The names in a tree of live memory, shortened to the room that each part has on the screen.
"use strict";

(function () {
  const FONT_PX = 11;
  const PADDING = 10;
  const FEWEST = 4;
  const CUT = "…";
  const FRAME = /^(?:[^\s/]+\/)?(\S+ (\S.*))$/;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${FONT_PX}px system-ui, sans-serif`;
  const fits = (text, width) => pen.measureText(text).width <= width;

  // Plotly reads names as HTML, so that the server has escaped them.
  const readable = (text) => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // As much of a name as has room. Of a frame, `folder/file.py function:line`, its function says most.
  function shortened(name, width) {
    if (fits(name, width)) return name;
    const [, file, place] = name.match(FRAME) || [], parts = /\.\w+ /.test(name) ? [file, place].filter(Boolean) : [];
    const part = parts.find((one) => fits(one, width));
    if (part) return part;
    const text = parts.at(-1) || name;
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
    window.dash_clientside.set_props("tree", { figure: fitted(drawn.figure, width) });
  });

  function fit(figure) {
    drawn = { figure, width: chart().clientWidth };
    observer.disconnect();
    observer.observe(chart());
    return fitted(figure, drawn.width);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { tree: { fit } });
})();
