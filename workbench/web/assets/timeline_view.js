// The timeline of a trace: draws all tracks on a canvas, and keeps what is shown and selected in the page's address.
"use strict";

(function () {
  const SHORTEST = 20;
  const SETTLED_MS = 160;
  const DETAIL_MS = 120;
  const own = () => window.timeline;

  class Timeline {
    constructor(host) {
      this.host = host;
      this.held = new (own().HeldKeys)();
      this.raster = new (own().Raster)();
      this.build();
      own().listen(this);
      own().listenToKeys(this);
      new ResizeObserver(() => this.resize()).observe(this.scroll);
      this.scroll.addEventListener("scroll", () => this.request());
    }

    build() {
      const { element } = own(), label = this.host.dataset.label;
      this.legend = element("ul", "", { class: "legend" });
      this.matches = element("span", "", { class: "matches", role: "status" });
      this.back = element("button", "‹", { "aria-label": "previous match" });
      this.next = element("button", "›", { "aria-label": "next match" });
      this.note = element("span", "", { class: "note", role: "status" });
      const whole = element("button", "whole trace", {});
      const bar = element("div", "", { class: "bar" });
      bar.append(this.legend, this.note, this.matches, this.back, this.next, whole);
      this.heads = element("div", "", { class: "heads" });
      this.canvas = element("canvas", "", { "aria-hidden": "true" });
      this.overlay = element("canvas", "", { tabindex: "0", role: "application", "aria-label": label, "aria-roledescription": "timeline" });
      const stage = element("div", "", { class: "stage" });
      stage.append(this.canvas, this.overlay);
      this.sticky = element("div", "", { class: "sticky" });
      this.sticky.append(this.heads, stage);
      this.spacer = element("div", "");
      this.scroll = element("div", "", { class: "scroller", tabindex: "-1" });
      this.scroll.append(this.sticky, this.spacer);
      this.tip = element("div", "", { class: "tip", "aria-hidden": "true" });
      this.spoken = element("p", "", { class: "spoken", "aria-live": "polite" });
      this.host.replaceChildren(bar, this.scroll, this.tip, this.spoken);
      this.back.addEventListener("click", () => this.seek(true));
      this.next.addEventListener("click", () => this.seek(false));
      whole.addEventListener("click", () => this.showAll());
    }

    // Shows what the server asks for: files, colours, and the state that the address holds.
    async apply(text) {
      if (text === this.applied) return;
      this.applied = text;
      const config = JSON.parse(text);
      this.note.textContent = this.config ? "" : "Loading events …";
      try {
        const sources = await Promise.all(config.sources.map((source) => sourceOf(source)));
        if (text !== this.applied) return;
        this.config = config;
        this.adopt(config, sources);
      } catch (error) {
        this.note.textContent = `The events could not be loaded: ${error.message}. Reload the page.`;
      }
    }

    adopt(config, sources) {
      const { state } = config;
      this.sources = sources;
      for (const source of sources) source.palette = new (own().Palette)(source.colours, config.hues.empty, config.hues.page);
      this.whole = { low: Math.min(0, ...sources.map(({ whole }) => whole.low)), high: Math.max(...sources.map(({ whole }) => whole.high)) };
      // An answer to a click comes late: who has moved on meanwhile stays there.
      const late = this.view && this.sent === `${config.span}` && this.sent !== this.bounds();
      if (!late) this.view = config.span ? { low: config.span[0], high: config.span[1] } : { ...this.whole };
      this.tracks = new (own().Tracks)(sources, state);
      this.focus = config.chosen ? { ...config.chosen, track: this.tracks.all.find((track) => track.source.key === config.chosen.file && track.lane === config.chosen.lane) } : null;
      this.range = state.pick ? this.pickedFrom(state.pick) : null;
      const merged = sources.some(({ whole }) => whole.joined);
      const total = sources.reduce((sum, { whole }) => sum + whole.total, 0);
      this.note.textContent = merged ? `${own().counted.format(total)} events; short ones are joined until you zoom in` : `${own().counted.format(total)} events`;
      this.search(document.getElementById("event-name")?.value ?? state.find);
      this.writeLegend(config.legend);
      this.rearrange();
      this.summarise();
      this.host.dataset.drawn = "";
    }

    writeLegend(legend) {
      const entries = legend.map(([text, colour]) => {
        const entry = own().element("li", text);
        const swatch = own().element("span", "", { class: "swatch" });
        swatch.style.background = colour;
        entry.prepend(swatch);
        return entry;
      });
      this.legend.replaceChildren(...entries);
    }

    // The tracks are higher or lower than before, or in another order.
    rearrange() {
      this.tracks.arrange();
      this.tracks.heads(this.heads, (track, property) => {
        track[property] = !track[property];
        this.rearrange();
        this.write({ pin: this.tracks.keys("pinned").join(" "), fold: this.tracks.keys("folded").join(" ") });
      });
      this.scroll.style.height = `${this.tracks.height}px`;
      this.resize();
    }

    resize() {
      if (!this.tracks) return;
      const height = this.scroll.clientHeight;
      this.sticky.style.height = `${height}px`;
      this.spacer.style.height = `${Math.max(0, this.tracks.height - height)}px`;
      this.height = height;
      this.width = Math.max(1, this.overlay.parentElement.clientWidth);
      this.ratio = Math.min(2, window.devicePixelRatio || 1);
      for (const canvas of [this.canvas, this.overlay]) {
        const [wide, high] = [Math.round(this.width * this.ratio), Math.round(height * this.ratio)];
        if (canvas.width !== wide) canvas.width = wide;
        if (canvas.height !== high) canvas.height = high;
      }
      this.paint();
    }

    // Draws once at the next frame, however often it is asked.
    request() {
      if (this.asked || !this.tracks) return;
      this.asked = true;
      this.before = performance.now();
      window.requestAnimationFrame((now) => this.frame(now));
    }

    frame(now) {
      this.asked = false;
      const moves = this.held.move(this, Math.min(0.1, Math.max(0, now - this.before) / 1000));
      this.paint();
      if (moves) this.request();
    }

    paint() {
      const context = this.canvas.getContext("2d", { alpha: false });
      const { ratio, raster, tracks } = this, top = this.scroll.scrollTop;
      raster.resize(context, this.canvas.width, this.canvas.height);
      const page = colourOf(this.config.hues.page);
      raster.pixels.fill(page);
      const labels = [], held = own().RULER + tracks.pinnedHeight;
      for (const track of tracks.all) if (!track.pinned) labels.push(...this.paintTrack(track, top, held));
      raster.fill(0, raster.width, 0, Math.round(held * ratio), page);
      for (const track of tracks.all) if (track.pinned) labels.push(...this.paintTrack(track, top, own().RULER));
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.putImageData(raster.image, 0, 0);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "11px system-ui, sans-serif";
      own().paintLabels(context, labels, ratio, this.config.hues.soft);
      this.paintRuler(context, held);
      tracks.scrollHeads(this.heads, top);
      this.paintOverlay();
    }

    // Draws the lines of a track that are in sight; returns their labels that are below `upper`.
    paintTrack(track, scrolled, upper) {
      const { ratio, raster, view, config } = this, { ROW } = own(), labels = [];
      const events = track.source.events(view), y = this.tracks.top(track, scrolled);
      const look = { events, palette: track.source.palette, categoryOf: categories(track, events), match: this.matchOf(events) };
      for (let depth = 0; depth < own().rows(track); depth++) {
        const top = y + depth * ROW, line = events.lineAt.get(`${depth} ${track.lane}`);
        if (!line || top + ROW <= upper || top >= this.height) continue;
        const edge = Math.round(top * ratio), height = Math.round((top + ROW - 1) * ratio) - edge;
        for (const label of own().paintLine(raster, edge, height, line, view, look)) {
          if (top >= upper) labels.push({ ...label, y: top + ROW / 2, text: events.label(label.i) });
        }
      }
      if (config && events.joined) this.wantDetail(track.source, events);
      return labels;
    }

    // Asks for the events of the visible range where they are drawn joined, and each would have a pixel of its own.
    wantDetail(source, events) {
      const { low, high } = this.view;
      if ((high - low) / this.canvas.width > events.joined || source.asked) return;
      source.asked = window.setTimeout(async () => {
        const { low, high } = this.view, room = (high - low) * 1.5;
        await source.fetchPart(Math.max(0, Math.floor(low - room)), Math.ceil(high + room)).catch(() => {});
        source.asked = 0;
        this.request();
      }, DETAIL_MS);
    }

    paintRuler(context, held) {
      const { hues } = this.config, { low, high } = this.view;
      const { at, base } = own().ticks(low, high, this.width);
      context.textBaseline = "alphabetic";
      context.fillStyle = hues.soft;
      context.strokeStyle = hues.edge;
      context.beginPath();
      for (const tick of at) {
        const x = Math.round(this.x(tick.at)) + 0.5;
        context.fillText(tick.text, x + 3, 24);
        context.moveTo(x, 16);
        context.lineTo(x, own().RULER - 1);
      }
      context.moveTo(0, own().RULER - 1.5);
      context.lineTo(this.width, own().RULER - 1.5);
      if (this.tracks.pinnedHeight) { context.moveTo(0, held - 3.5); context.lineTo(this.width, held - 3.5); }
      context.stroke();
      const start = base ? `from ${own().duration(base)}` : "";
      if (start) context.fillText(start, this.width - context.measureText(start).width - 4, 11);
      this.paintSteps(context);
    }

    // Names the steps in sight above the axis, as far as there is room.
    paintSteps(context) {
      context.fillStyle = this.config.hues.ink;
      this.marked = [];
      let free = -Infinity;
      for (const [i, [at, text]] of this.config.steps.entries()) {
        const x = this.x(at), next = this.config.steps[i + 1], label = Math.max(0, x);
        if (x > this.width || (next && this.x(next[0]) <= 0) || label < free) continue;
        context.fillText(text, label + 3, 11);
        free = label + context.measureText(text).width + 12;
        if (x >= 0) this.marked.push(x);
      }
    }

    x(at) { return ((at - this.view.low) / (this.view.high - this.view.low)) * this.width; }

    // What changes without the slices: the cursor, the selected range, the steps and the selected event.
    paintOverlay() {
      const context = this.overlay.getContext("2d"), { hues } = this.config;
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      context.fillStyle = hues.rule;
      for (const x of this.marked) context.fillRect(Math.round(x), 0, 1, this.height);
      if (this.range) this.paintRange(context, hues);
      if (this.focus && this.focus.track) this.paintFocus(context, hues);
      if (this.cursor) context.fillRect(Math.round(this.cursor.x), own().RULER, 1, this.height);
    }

    paintRange(context, hues) {
      const [x0, x1] = [this.range.low, this.range.high].map((at) => this.x(at));
      context.globalAlpha = 0.12;
      context.fillStyle = hues.ink;
      context.fillRect(x0, own().RULER, x1 - x0, this.height);
      context.globalAlpha = 1;
      context.fillRect(x0, own().RULER, 1, this.height);
      context.fillRect(x1 - 1, own().RULER, 1, this.height);
      const text = own().duration(this.range.high - this.range.low);
      context.font = "600 11px system-ui, sans-serif";
      const width = context.measureText(text).width + 8, middle = Math.max(0, Math.min(this.width - width, (x0 + x1 - width) / 2));
      context.fillRect(middle, own().RULER + 2, width, 16);
      context.fillStyle = hues.page;
      context.fillText(text, middle + 4, own().RULER + 14);
    }

    paintFocus(context, hues) {
      const { track, depth, start, dur } = this.focus, top = this.tracks.top(track, this.scroll.scrollTop);
      if (depth >= own().rows(track)) return;
      const y = top + depth * own().ROW, held = own().RULER + (track.pinned ? 0 : this.tracks.pinnedHeight);
      if (y + own().ROW <= held) return;
      const x0 = this.x(start), width = Math.max(3, this.x(start + dur) - x0);
      context.lineWidth = 2;
      for (const [colour, out] of [[hues.page, 0], [hues.ink, 1.5]]) {
        context.strokeStyle = colour;
        context.strokeRect(x0 - out, y - out, width + 2 * out, own().ROW - 1 + 2 * out);
      }
    }

    // Changes of the view; the address and the tables follow once it has settled.
    show(low, high) {
      const { whole } = this, length = Math.min(whole.high - whole.low, Math.max(SHORTEST, high - low));
      const start = Math.max(whole.low, Math.min(whole.high - length, low));
      this.view = { low: start, high: start + length };
      window.clearTimeout(this.settling);
      this.settling = window.setTimeout(() => this.settle(), SETTLED_MS);
      this.request();
    }

    showAll() { this.show(this.whole.low, this.whole.high); }

    // Scales the visible time by `factor`; what is at the part `place` of the width stays there.
    zoom(factor, place) {
      const { low, high } = this.view, at = low + (high - low) * place;
      const length = Math.max(SHORTEST, (high - low) * factor);
      this.show(at - length * place, at + length * (1 - place));
    }

    pan(part) {
      const by = (this.view.high - this.view.low) * part;
      this.show(this.view.low + by, this.view.high + by);
    }

    isWhole() { return this.view.low <= this.whole.low && this.view.high >= this.whole.high; }

    bounds() { return this.isWhole() ? "null" : `${Math.round(this.view.low)},${Math.round(this.view.high)}`; }

    settle() {
      this.write({});
      const [low, high] = this.bounds().split(",").map(Number);
      const change = this.isWhole() ? { "xaxis.autorange": true } : { "xaxis.range": [low, high] };
      window.dash_clientside.set_props(`${this.host.id}-zoom`, { data: change });
    }

    // Writes the visible range and `change` ({name: text}) into the address; with `push` the server answers it.
    write(change, push) {
      window.clearTimeout(this.settling);
      const url = new URL(window.location);
      const [from, to] = this.isWhole() ? ["", ""] : this.bounds().split(",");
      const values = { from, to, steps: "", ...change };
      for (const [name, value] of Object.entries(values)) {
        if (value) url.searchParams.set(name, value); else url.searchParams.delete(name);
      }
      if (!push) { window.history.replaceState(window.history.state, "", url); return; }
      this.sent = this.isWhole() ? "null" : this.bounds();
      window.workbench.go(url);
    }

    // The line of events below a place; null if there is none.
    lineOf({ track, depth }) {
      return track.source.events(this.view).lineAt.get(`${depth} ${track.lane}`) || null;
    }

    hitAt({ x, y }) {
      const found = this.tracks && this.tracks.at(y, this.scroll.scrollTop), line = found && this.lineOf(found);
      const hit = line && own().sliceAt(found.track.source.events(this.view), line, this.view, x, this.width);
      return hit ? { ...hit, ...found } : null;
    }

    hover(place) {
      const hit = place && this.hitAt(place);
      this.tip.hidden = !hit;
      this.overlay.style.cursor = hit ? "pointer" : "default";
      if (hit) {
        this.tip.replaceChildren(...own().description(hit).map((text) => own().element("div", text)));
        const right = place.x > this.width / 2, offset = this.overlay.getBoundingClientRect();
        const room = this.host.getBoundingClientRect();
        this.tip.style.left = right ? "" : `${offset.left - room.left + place.x + 14}px`;
        this.tip.style.right = right ? `${room.right - offset.left - place.x + 14}px` : "";
        this.tip.style.top = `${offset.top - room.top + place.y + 18}px`;
      }
      if (this.tracks) this.paintOverlay();
    }

    click(place) {
      const hit = this.hitAt(place);
      if (!hit) return;
      this.focusOn(hit);
      this.open();
    }

    fitAt(place) {
      const hit = this.hitAt(place);
      if (!hit) { this.showAll(); return; }
      this.focusOn(hit);
      this.fit();
    }

    // Outlines a slice, and says aloud what it is.
    focusOn({ track, depth, events, i }) {
      this.focus = { track, depth, file: track.source.key, row: events.row[i], start: events.start[i], dur: events.dur[i] };
      this.spoken.textContent = `${events.label(i)}, ${own().duration(events.dur[i])}, from ${own().duration(events.start[i])}, ${track.lane}, level ${depth + 1}`;
      this.request();
    }

    // Asks for the callers of the outlined event.
    open() {
      if (this.focus && this.focus.row >= 0) this.write({ event: `${this.focus.row}`, of: /^path/.test(this.focus.file) || this.focus.file === this.config.file ? "" : this.focus.file }, true);
    }

    fit() {
      if (!this.focus) return;
      const { start, dur } = this.focus, room = Math.max(SHORTEST, dur) / 2;
      this.show(start - room, start + dur + room);
    }

    pickFocus() {
      if (!this.focus || !this.focus.track) return;
      this.range = { low: this.focus.start, high: this.focus.start + this.focus.dur, tracks: [this.focus.track] };
      this.picked();
    }

    // Moves the outline to another event of the same line, and the view to it where it is out of sight.
    step(by) {
      const focus = this.focus || this.firstFocus(), line = focus && focus.track && this.lineOf(focus);
      if (!line) return;
      const events = focus.track.source.events(this.view);
      const at = events.from(line, focus.start), i = Math.max(line.first, Math.min(line.last - 1, this.focus ? at + by : at));
      this.focusOn({ ...focus, events, i });
      this.reveal();
    }

    // Moves the outline to the line above or below, to the event there at the same time.
    climb(by) {
      const focus = this.focus || this.firstFocus();
      if (!focus || !focus.track) return;
      const places = this.tracks.all.flatMap((track) => Array.from({ length: own().rows(track) }, (_, depth) => ({ track, depth })));
      const index = places.findIndex(({ track, depth }) => track === focus.track && depth === focus.depth);
      for (let next = index + by; next >= 0 && next < places.length; next += by) {
        const place = places[next], line = this.lineOf(place), events = place.track.source.events(this.view);
        if (!line) continue;
        this.focusOn({ ...place, events, i: Math.min(line.last - 1, events.firstVisible(line, focus.start)) });
        this.reveal();
        return;
      }
    }

    // The first event in sight: where the keyboard begins.
    firstFocus() {
      for (const track of this.tracks.all) {
        const line = this.lineOf({ track, depth: 0 }), events = track.source.events(this.view);
        const i = line ? events.from(line, this.view.low) : 0;
        if (line && i < line.last) return { track, depth: 0, start: events.start[i] };
      }
      return null;
    }

    reveal() {
      const { start, dur, track, depth } = this.focus, { low, high } = this.view;
      if (start < low || start > high || start + dur < low) this.show(start - (high - low) / 2, start + (high - low) / 2);
      const y = this.tracks.top(track, this.scroll.scrollTop) + depth * own().ROW;
      const held = own().RULER + this.tracks.pinnedHeight;
      if (!track.pinned && y < held) this.scroll.scrollTop -= held - y + own().ROW;
      if (y + own().ROW > this.height) this.scroll.scrollTop += y + 2 * own().ROW - this.height;
    }

    // Highlights the events whose name contains a text.
    search(text) {
      this.sought = text.trim();
      this.found = new Map();
      const some = this.sought && this.sources;
      this.matches.textContent = some ? own().matchText(this.sources, (events) => this.matchOf(events)) : "";
      this.back.hidden = this.next.hidden = !some;
      this.request();
    }

    matchOf(events) {
      if (!this.sought) return null;
      if (!this.found.has(events)) this.found.set(events, events.matching(this.sought));
      return this.found.get(events);
    }

    // Moves to the next or previous event that matches, and closer if it would be too narrow to see.
    seek(back) {
      if (!this.sought) return;
      const { low, high } = this.view, at = this.focus ? this.focus.start : back ? high : low;
      const hits = this.sources.flatMap((source) => {
        const events = source.whole, i = events.nextMatch(this.matchOf(events), at, back, events.lines);
        return i < 0 ? [] : [{ source, events, i, start: events.start[i] }];
      });
      if (!hits.length) { this.spoken.textContent = "no further match"; return; }
      const { source, events, i } = hits.reduce((best, hit) => ((hit.start < best.start) !== back ? hit : best));
      const line = events.lineOf(i), track = this.tracks.all.find((one) => one.source === source && one.lane === line.lane);
      if (track.folded && line.depth) { track.folded = false; this.rearrange(); }
      this.focusOn({ track, depth: line.depth, events, i });
      const length = Math.min(high - low, Math.max(events.dur[i] * 20, SHORTEST * 10)), middle = events.start[i] + events.dur[i] / 2;
      this.show(middle - length / 2, middle + length / 2);
      this.reveal();
    }

    // Selects the range between two places of the canvas, on the tracks between them.
    pick(places) {
      if (!places) {
        this.range = null;
        this.write({ pick: "" });
      } else {
        const [a, b] = places, scroll = this.scroll.scrollTop;
        const tracks = this.tracks.between(Math.min(a.y, b.y), Math.max(a.y, b.y), scroll);
        this.range = { low: Math.min(a.at, b.at), high: Math.max(a.at, b.at), tracks: tracks.length ? tracks : this.tracks.all };
      }
      this.summarise();
      this.request();
    }

    // The range is final.
    picked() {
      const { low, high, tracks } = this.range;
      this.write({ pick: [Math.round(low), Math.round(high), ...tracks.map((track) => track.key)].join(" ") });
      this.summarise();
      this.request();
    }

    pickedFrom(text) {
      const [low, high, ...keys] = text.split(" ");
      const tracks = this.tracks.all.filter((track) => keys.includes(track.key));
      return Number(low) < Number(high) ? { low: Number(low), high: Number(high), tracks: tracks.length ? tracks : this.tracks.all } : null;
    }

    // Writes the sums of the selected range beside the chart.
    summarise() {
      const place = document.getElementById("selection");
      if (!place) return;
      if (this.range) own().showRange(place, this.range, this.range.tracks, this.range);
      else place.replaceChildren();
    }
  }

  function colourOf(hex) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  }

  // What the colour of a slice stands for: its kind, its phase, or its track.
  function categories(track, events) {
    const { by, colours } = track.source;
    if (by === "stream") return () => track.number % colours.length;
    const codes = by === "phase" ? events.phase : events.kind;
    return (i) => codes[i];
  }

  // The events of one file: of all its time, and of a part of it where the whole has too many.
  async function sourceOf(config) {
    const whole = await own().load(config.src, config.shift);
    const source = { ...config, whole, part: null };
    source.events = (view) => (source.part && source.part.low <= view.low && source.part.high >= view.high ? source.part.events : whole);
    source.fetchPart = async (low, high) => {
      const src = `${config.src}?from=${Math.max(0, low - config.shift)}&to=${high - config.shift}`;
      source.part = { low, high, events: await own().load(src, config.shift) };
    };
    return source;
  }

  const made = new WeakMap();

  function mount(host) {
    if (!made.has(host)) made.set(host, new Timeline(host));
    const timeline = made.get(host);
    host.timeline = timeline;
    timeline.apply(host.dataset.timeline);
    const place = document.getElementById("selection");
    if (timeline.range && place && !place.firstChild) timeline.summarise();
  }

  // Pages come and go without loading anew; React may keep a part of the page and change its attributes only.
  new MutationObserver(() => {
    const host = document.querySelector("[data-timeline]");
    if (host) mount(host);
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-timeline"] });

  let typing = 0;
  document.addEventListener("input", (event) => {
    const timeline = event.target.id === "event-name" && document.querySelector("[data-timeline]")?.timeline;
    if (!timeline) return;
    timeline.search(event.target.value);
    window.clearTimeout(typing);
    typing = window.setTimeout(() => timeline.write({ find: timeline.sought }), 300);
  });
  document.addEventListener("keydown", (event) => {
    const timeline = event.target.id === "event-name" && document.querySelector("[data-timeline]")?.timeline;
    if (timeline && event.key === "Enter") timeline.seek(event.shiftKey);
  });
})();
