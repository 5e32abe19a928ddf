// The timeline of a trace: draws all tracks on a canvas, and keeps what is shown and selected in the page's address.
"use strict";

(function () {
  const SETTLED_MS = 120;
  const DETAIL_MS = 120;
  const own = () => window.timeline;

  class Timeline {
    constructor(host) {
      this.host = host;
      this.held = new (own().HeldKeys)();
      this.raster = new (own().Raster)();
      this.build();
      own().listen(this);
      new ResizeObserver(() => this.resize()).observe(this.scroll);
      this.scroll.addEventListener("scroll", () => {
        if (this.scroll.isConnected) this.scrolled = this.scroll.scrollTop;
        this.request();
      });
      this.overlay.addEventListener("focus", () => { this.focused = true; });
      this.overlay.addEventListener("blur", () => window.setTimeout(() => {
        if (this.overlay.isConnected && document.activeElement !== this.overlay) this.focused = false;
      }));
    }

    // The server answers a click with a new page: what was scrolled to and had the focus stays so.
    moveTo(host) {
      host.replaceChildren(...this.host.childNodes);
      this.host = host;
      this.applied = null;
      if (this.focused && document.activeElement === document.body) this.overlay.focus({ preventScroll: true });
      this.scroll.scrollTop = this.scrolled || 0;
    }

    build() {
      const { element } = own(), label = this.host.dataset.label;
      this.legend = element("ul", "", { class: "legend" });
      this.matches = element("span", "", { class: "matches", role: "status" });
      this.back = element("button", "‹", { "aria-label": "previous match" });
      this.next = element("button", "›", { "aria-label": "next match" });
      this.note = element("span", "", { class: "note", role: "status" });
      const whole = element("button", "fit all", { title: "show the whole trace (0)" });
      const bar = element("div", "", { class: "bar" });
      bar.append(this.legend, this.matches, this.back, this.next, this.note, whole);
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
      this.tip = element("div", "", { class: "tip", "aria-hidden": "true", hidden: "" });
      this.spoken = element("p", "", { class: "spoken", "aria-live": "polite" });
      this.minimap = new (own().Minimap)(this);
      this.host.replaceChildren(bar, this.minimap.node, this.scroll, this.tip, this.spoken);
      this.back.addEventListener("click", () => own().seek(this, true));
      this.next.addEventListener("click", () => own().seek(this, false));
      whole.addEventListener("click", () => this.showAll());
    }

    // Shows what the server asks for: files, colours, and the state that the address holds.
    async apply(text) {
      if (text === this.applied) return;
      this.applied = text;
      const config = JSON.parse(text);
      this.note.textContent = this.config ? "" : "Loading events …";
      try {
        const sources = await Promise.all(config.sources.map((source) => own().sourceOf(source)));
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
      this.sent = null;
      if (!late) this.view = config.span ? { low: config.span[0], high: config.span[1] } : { ...this.whole };
      this.tracks = new (own().Tracks)(sources, state);
      this.focus = config.chosen && { ...config.chosen, track: this.tracks.of(config.chosen) };
      this.range = state.pick ? this.pickedFrom(state.pick) : null;
      const merged = sources.some(({ whole }) => whole.joined);
      const total = sources.reduce((sum, { whole }) => sum + whole.total, 0);
      const tracks = this.tracks.left ? `, ${this.tracks.left} tracks left out` : "";
      this.note.textContent = `${own().counted.format(total)} events${merged ? ", short ones joined" : ""}${tracks}`;
      this.note.title = merged ? "Zoom in to see them one by one" : "";
      this.search(document.getElementById("event-name")?.value ?? state.find);
      own().writeLegend(this.legend, config.legend, sources);
      this.minimap.renew();
      this.rearrange();
      this.summarise();
      this.shown = this.applied;
      this.host.dataset.drawn = "";
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
      const height = this.scroll.clientHeight;
      if (!this.tracks || !height) return;
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
      this.minimap.resize();
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
      const page = own().pixelOf(this.config.hues.page);
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
      own().paintRuler(this, context, held);
      tracks.scrollHeads(this.heads, top);
      own().paintOverlay(this);
      this.minimap.paint();
    }

    // Draws the lines of a track that are in sight; returns their labels that are below `upper`.
    paintTrack(track, scrolled, upper) {
      const { ratio, raster, view, config } = this, { ROW } = own(), labels = [];
      const events = track.source.events(view), y = this.tracks.top(track, scrolled);
      const look = { events, palette: track.source.palette, match: this.matchOf(events), ...own().categories(track, events) };
      for (let depth = 0; depth < own().rows(track); depth++) {
        const top = y + depth * ROW, line = events.lineAt.get(`${depth} ${track.lane}`);
        if (!line || top + ROW <= upper || top >= this.height) continue;
        const edge = Math.round(top * ratio), height = Math.round((top + ROW - 1) * ratio) - edge;
        for (const label of own().paintLine(raster, edge, height, line, view, look)) {
          if (top >= upper) labels.push({ ...label, y: top + ROW / 2, text: own().textOf(events, label.i) });
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

    x(at) { return ((at - this.view.low) / (this.view.high - this.view.low)) * this.width; }

    // Changes of the view; the address and the tables follow once it has settled.
    show(low, high) {
      const { whole } = this, length = Math.min(whole.high - whole.low, Math.max(own().SHORTEST, high - low));
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
      const length = Math.max(own().SHORTEST, (high - low) * factor);
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
      this.minimap.speak();
      const [low, high] = this.bounds().split(",").map(Number);
      const change = this.isWhole() ? { "xaxis.autorange": true } : { "xaxis.range": [low, high] };
      window.dash_clientside.set_props(`${this.host.id}-zoom`, { data: change });
    }

    // Writes the visible range and `change` ({name: text}) into the address; with `push` the server answers it.
    write(change, push) {
      window.clearTimeout(this.settling);
      const url = new URL(window.location);
      const [from, to] = this.isWhole() ? ["", ""] : this.bounds().split(",");
      // The steps in the address are those of the range; the server will name those of another range.
      const moved = (url.searchParams.get("from") || "") !== from || (url.searchParams.get("to") || "") !== to;
      const values = { ...(moved ? { from, to, steps: "" } : {}), ...change };
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
      if (this.tracks) own().paintOverlay(this);
    }

    click(place) {
      const hit = this.hitAt(place);
      if (hit) {
        this.focusOn(hit);
        this.open();
      } else if (this.range) {
        this.pick(null);
      }
    }

    fitAt(place) {
      const hit = this.hitAt(place);
      if (!hit) { this.showAll(); return; }
      this.focusOn(hit);
      own().fit(this);
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

    // Highlights the events whose name contains a text.
    search(text) {
      this.sought = text.trim();
      this.found = new Map();
      const some = this.sought && this.sources;
      this.matches.textContent = some ? own().matchText(this.sources, (events) => this.matchOf(events)) : "";
      this.back.hidden = this.next.hidden = !some;
      this.note.hidden = Boolean(some) && !this.sources.some(({ whole }) => whole.joined);
      this.minimap.stale = true;
      this.request();
    }

    matchOf(events) {
      if (!this.sought) return null;
      if (!this.found.has(events)) this.found.set(events, events.matching(this.sought));
      return this.found.get(events);
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

  let only = null;
  const current = () => document.querySelector("[data-timeline]")?.timeline;

  function mount(host) {
    if (!only) only = new Timeline(host);
    if (only.host !== host) only.moveTo(host);
    host.timeline = only;
    only.apply(host.dataset.timeline);
    const place = document.getElementById("selection");
    if (only.range && place && !place.firstChild) only.summarise();
  }

  // Pages come and go without loading anew: one timeline moves from page to page.
  new MutationObserver(() => {
    const host = document.querySelector("[data-timeline]");
    if (host) mount(host);
  }).observe(document.documentElement, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-timeline"] });

  own().listenToKeys(current);

  let typing = 0;
  document.addEventListener("input", (event) => {
    const timeline = event.target.id === "event-name" && current();
    if (!timeline) return;
    timeline.search(event.target.value);
    window.clearTimeout(typing);
    typing = window.setTimeout(() => timeline.write({ find: timeline.sought }), 300);
  });
  document.addEventListener("keydown", (event) => {
    const timeline = event.target.id === "event-name" && current();
    if (timeline && event.key === "Enter") own().seek(timeline, event.shiftKey);
  });
})();
