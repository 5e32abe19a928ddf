// Draws the slices of a timeline as pixels, and its time axis.
"use strict";

(function () {
  const WIDE = 2;
  const LABELLED = 26;
  const LETTER = 6.1;
  const SEEN = 2;
  const SOUGHT = 5;
  const EDGED = 4;
  // The width in pixels below which a loop is faster than a call of `fill`.
  const NARROW = 24;
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const TICK_PX = 110;
  const LIGHTER = [0, 0.14, -0.12, 0.26, -0.22];

  const own = () => window.timeline;
  const parsed = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const mixed = (rgb, other, part) => rgb.map((value, i) => Math.round(value + (other[i] - value) * part));
  const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

  // The colour of text on a colour: black or white (relative luminance of WCAG 2.2).
  function textOn(rgb) {
    const [r, g, b] = rgb.map((value) => ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
  }

  // The shades of each category: one for each group of names, so that neighbours of one kind can be told apart.
  // `edge` is the shade of a slice's first pixel. The last category is that of events that do not match a search.
  class Palette {
    constructor(colours, dim, page) {
      const paper = parsed(page);
      this.shades = [...colours, dim].map((hex, category) => {
        const variants = category < colours.length ? LIGHTER : LIGHTER.map(() => 0);
        return variants.map((part) => {
          const rgb = mixed(parsed(hex), part > 0 ? [255, 255, 255] : [0, 0, 0], Math.abs(part));
          return { fill: packed(rgb), edge: packed(mixed(rgb, paper, 0.5)), text: textOn(rgb) };
        });
      });
      this.dim = colours.length;
    }

    // {colour: category} of all pixels that slices are drawn with.
    categories() {
      const entries = this.shades.flatMap((shades, category) => shades.flatMap(({ fill, edge }) => [[fill, category], [edge, category]]));
      return Object.fromEntries(entries);
    }
  }

  // What a line is drawn into: all pixels of the canvas as 32-bit numbers, `width` a row.
  class Raster {
    resize(context, width, height) {
      if (this.width === width && this.height === height) return;
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      Object.assign(this, { width, height });
    }

    fill(x0, x1, y0, y1, colour) {
      const { pixels, width } = this, last = Math.min(this.height, y1), narrow = x1 - x0 < NARROW;
      for (let y = Math.max(0, y0), row = y * width; y < last; y++, row += width) {
        if (narrow) for (let x = row + x0; x < row + x1; x++) pixels[x] = colour;
        else pixels.fill(colour, row + x0, row + x1);
      }
    }
  }

  // Draws one line between the pixel rows `top` and `top + height`; it returns the slices that have room for a label.
  //
  // A slice of at least two pixels is a rectangle. Narrower ones share pixels: in each column every category is as high
  // as its share of the column's time, so that the area in the picture is the share of the time. Where events are so
  // short that nothing would be left of them, they are two pixels high.
  function paintLine(raster, top, height, line, view, look) {
    const { events, palette, codes, fixed, match } = look, { start, dur, name, hue } = events;
    const scale = raster.width / (view.high - view.low), labels = [];
    const columns = new Columns(raster, top, height, look);
    let i = events.firstVisible(line, view.low);
    while (i < line.last && start[i] < view.high) {
      const x = (start[i] - view.low) * scale;
      if (columns.addBlock(i, line, x, view.low, scale)) { i += own().BLOCK; continue; }
      const wide = dur[i] * scale, category = match && !match[name[i]] ? palette.dim : codes ? codes[i] : fixed;
      if (wide < WIDE) {
        columns.add(x, wide, category);
      } else {
        const [x0, x1] = columns.edges(x, x + wide, i + 1 < line.last ? (start[i + 1] - view.low) * scale : Infinity, category);
        const shade = palette.shades[category][hue[name[i]]];
        if (x1 > x0) paintSlice(raster, x0, x1, top, height, shade);
        if (x1 - x0 >= LABELLED) labels.push({ x0, x1, i, shade, dim: category === palette.dim });
      }
      i++;
    }
    columns.flush();
    return labels;
  }

  // Collects what narrow slices share a column of pixels of one line, and draws each column when it is complete.
  class Columns {
    constructor(raster, top, height, look) {
      Object.assign(this, { raster, top, height, palette: look.palette, match: look.match, codes: look.codes, fixed: look.fixed });
      this.events = look.events;
      this.size = this.codes ? this.palette.shades.length : 2;
      this.busy = new Float64Array(this.palette.shades.length);
      this.at = -1;
      this.held = false;
      this.summed = look.events.blocks(this.codes, this.match, this.size);
    }

    add(x, wide, category) {
      const at = Math.max(0, Math.floor(x)), beyond = x + wide - at - 1;
      this.turn(at);
      this.busy[category] += beyond > 0 ? wide - beyond : Math.max(wide, 1e-9);
      if (beyond > 0) {
        this.turn(at + 1);
        this.busy[category] += beyond;
      }
    }

    // Adds a block of slices at once if slice `i` is the first of one that lies within a single column.
    addBlock(i, line, x, low, scale) {
      const { events, summed, size } = this, last = i + own().BLOCK - 1;
      if (i % own().BLOCK || last >= line.last || x < 0) return false;
      const block = i / own().BLOCK, at = Math.floor(x);
      if ((events.start[last] + events.dur[last] - low) * scale > at + 1 || summed.widest[block] * scale >= WIDE) return false;
      this.turn(at);
      for (let k = 0; k < size; k++) {
        const category = this.codes ? k : k ? this.palette.dim : this.fixed;
        this.busy[category] += summed.sums[block * size + k] * scale;
      }
      return true;
    }

    // The first and last pixel of a wide slice: its edges are rounded. But a column that it shares with a narrower slice
    // before it, or with the next, gets its share of each; otherwise short events beside long ones would vanish.
    edges(from, to, next, category) {
      let x0 = Math.round(from), x1 = Math.round(to);
      if (this.held && this.at === Math.floor(from)) {
        this.busy[category] += this.at + 1 - from;
        x0 = this.at + 1;
      }
      this.flush();
      if (next < Math.floor(to) + 1 && to < this.raster.width) {
        x1 = Math.floor(to);
        this.turn(x1);
        this.busy[category] += to - x1;
      }
      return [Math.max(0, x0), Math.min(this.raster.width, x1)];
    }

    turn(at) {
      if (at !== this.at) this.flush();
      this.at = at;
      this.held = true;
    }

    flush() {
      if (this.held) paintColumn(this.raster, this.at, this.top, this.height, this.busy, this.palette, this.match);
      this.held = false;
    }
  }

  function paintSlice(raster, x0, x1, top, height, shade) {
    raster.fill(x0, x1, top, top + height, shade.fill);
    if (x1 - x0 >= EDGED) raster.fill(x0, x0 + 1, top, top + height, shade.edge);
  }

  // Draws one column of pixels, its categories one above the other, from the bottom; `busy` has their shares of its time.
  function paintColumn(raster, x, top, height, busy, palette, match) {
    let sum = 0, sought = 0;
    for (let k = 0; k < palette.shades.length; k++) { sum += busy[k]; if (k < palette.dim) sought += busy[k]; }
    const least = Math.min(1, SEEN / height);
    const grown = sum > 1 ? 1 / sum : sum < least ? least / sum : 1;
    if (match && sought > 0 && sought * grown * height < SOUGHT) { liftSought(busy, palette.dim, sought, grown, height); }
    let reached = 0, low = top + height;
    for (let k = 0; k < palette.shades.length; k++) {
      if (!busy[k]) continue;
      reached += busy[k] * grown;
      const high = top + height - Math.round(Math.min(1, reached) * height);
      if (x < raster.width) raster.fill(x, x + 1, high, low, palette.shades[k][0].fill);
      low = high;
      busy[k] = 0;
    }
  }

  // What was searched for must be seen even where it takes little of a column's time.
  function liftSought(busy, dim, sought, grown, height) {
    const factor = SOUGHT / (sought * grown * height);
    for (let k = 0; k < dim; k++) busy[k] *= factor;
    busy[dim] = Math.min(busy[dim], Math.max(0, 1 / grown - SOUGHT / height / grown));
  }

  // Writes the names of slices that have room for them; `labels` are in pixels of the raster, `ratio` of them a CSS pixel.
  function paintLabels(context, labels, ratio, dimmed) {
    context.textBaseline = "middle";
    for (const { x0, x1, y, text, shade, dim } of labels) {
      const letters = Math.floor(((x1 - x0) / ratio - 6) / LETTER);
      if (letters < 2) continue;
      context.fillStyle = dim ? dimmed : shade.text;
      context.fillText(fitted(text, letters), x0 / ratio + 4, y);
    }
  }

  // A name that fits into a number of letters. Of `module.py(1782): _call_impl` and `nn.Module: Linear_3` the part behind
  // the colon tells slices apart; their beginnings are the same all over a trace.
  function fitted(text, letters) {
    if (text.length <= letters) return text;
    const name = text.slice(text.lastIndexOf(": ") + 1).trimStart() || text;
    return name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
  }

  // A duration as text with a unit and about four digits, such as `12.35 ms`.
  function duration(ns) {
    const [size, unit] = UNITS.find(([least]) => Math.abs(ns) >= least) || UNITS[3];
    return `${Number((ns / size).toPrecision(4))} ${unit}`;
  }

  // The ticks of a time range: [{at, text}]; they are 1, 2 or 5 times a power of ten apart. Where a tick shows only the
  // end of a long number, `base` is the time that it counts from.
  function ticks(low, high, width) {
    const least = ((high - low) * TICK_PX) / width, power = 10 ** Math.floor(Math.log10(least));
    const every = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= least) * power);
    const [size, unit] = UNITS.find(([one]) => every >= one) || UNITS[3];
    const digits = Math.max(0, Math.ceil(-Math.log10(every / size) - 1e-9));
    // Beside a large offset the last digits of a number are hard to read.
    const base = high > 1e4 * size ? Math.floor(low / (1000 * size)) * 1000 * size : 0;
    const at = [];
    for (let tick = Math.ceil(low / every) * every; tick <= high; tick += every) at.push(tick);
    const sign = base ? "+" : "";
    return { base, at: at.map((tick) => ({ at: tick, text: `${sign}${((tick - base) / size).toFixed(digits)} ${unit}` })) };
  }

  const pixelOf = (hex) => packed(parsed(hex));

  // What the colours of a track stand for: the category of each slice, or one `fixed` category for all of them.
  function categories(track, events) {
    const { by, colours } = track.source;
    if (by === "stream") return { codes: null, fixed: track.number % colours.length };
    return { codes: by === "phase" ? events.phase : events.kind, fixed: 0 };
  }

  Object.assign(window.timeline, { pixelOf, categories, Palette, Raster, paintLine, paintLabels, fitted, duration, ticks, WIDE });
})();
