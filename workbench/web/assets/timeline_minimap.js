// The strip above a timeline: the whole trace in small, and on it a window around the part that is visible.
"use strict";

(function () {
  const HEIGHT = 44;
  const STEPS_HEIGHT = 4;
  const LEAST_ROW = 3;
  const LEAST_STEP = 6;
  const EDGE = 6;
  const NARROWEST = 4;
  const MOVED = 4;
  const own = () => window.timeline;

  // The tracks that have room, those with the most events of many.
  function busiest(tracks, most) {
    const events = (track) => linesOf(track).reduce((sum, line) => sum + line.last - line.first, 0);
    const chosen = new Set([...tracks].sort((a, b) => events(b) - events(a)).slice(0, most));
    return tracks.filter((track) => chosen.has(track));
  }

  const linesOf = (track) => track.source.whole.lines.filter((line) => line.lane === track.lane).sort((a, b) => a.depth - b.depth);

  class Minimap {
    constructor(timeline) {
      const { element } = own();
      this.timeline = timeline;
      this.raster = new (own().Raster)();
      this.head = element("div", "", { class: "overview-head" });
      this.canvas = element("canvas", "", { "aria-hidden": "true" });
      this.picture = document.createElement("canvas");
      this.strip = element("div", "", { class: "strip", tabindex: "0", role: "slider", "aria-label": "Visible part of the trace", "aria-valuemin": "0", "aria-valuemax": "100" });
      this.strip.append(this.canvas);
      this.node = element("div", "", { class: "overview" });
      this.node.append(this.head, this.strip);
      this.listen();
    }

    // Other events, colours or matches than before are to be drawn.
    renew() {
      const { whole, tracks } = this.timeline;
      this.stale = true;
      this.base = null;
      this.tracks = busiest(tracks.all, Math.floor((HEIGHT - STEPS_HEIGHT) / LEAST_ROW));
      this.head.textContent = `whole trace, ${own().duration(whole.high - whole.low)}`;
      this.strip.title = this.tracks.length < tracks.all.length ? `${this.tracks.length} of ${tracks.all.length} tracks` : "";
      this.speak();
    }

    resize() {
      this.width = Math.max(1, this.strip.clientWidth);
      const [wide, high] = [this.width, HEIGHT].map((size) => Math.round(size * this.timeline.ratio));
      if (this.canvas.width === wide && this.canvas.height === high) return;
      for (const canvas of [this.canvas, this.picture]) Object.assign(canvas, { width: wide, height: high });
      this.stale = true;
      this.base = null;
    }

    // Draws the events once; afterwards a change of the view costs no look at them, and a search only one at names.
    paintPicture() {
      const { timeline, raster } = this, { config } = timeline, page = own().pixelOf(config.hues.page);
      const context = this.picture.getContext("2d", { alpha: false });
      raster.resize(context, this.picture.width, this.picture.height);
      if (!this.base) this.paintEvents(page);
      raster.pixels.set(this.base);
      if (timeline.sought) {
        const dim = own().pixelOf(config.hues.empty);
        for (let i = 0; i < raster.pixels.length; i++) if (raster.pixels[i] !== page) raster.pixels[i] = dim;
        this.eachTrack((track, top, height) => { for (const line of linesOf(track)) this.paintMatches(track, line, top, height); });
      }
      context.putImageData(raster.image, 0, 0);
      this.stale = false;
    }

    // A track is one row: what is nested is drawn over what encloses it.
    paintEvents(page) {
      const { raster, timeline } = this;
      raster.pixels.fill(page);
      this.eachTrack((track, top, height) => {
        const events = track.source.whole;
        const look = { events, palette: track.source.palette, match: null, ...own().categories(track, events) };
        for (const line of linesOf(track)) own().paintLine(raster, top, height, line, timeline.whole, look);
      });
      this.base = raster.pixels.slice();
    }

    eachTrack(paint) {
      const { ratio } = this.timeline, above = STEPS_HEIGHT * ratio, row = (this.raster.height - above) / Math.max(1, this.tracks.length);
      const height = Math.max(1, Math.floor(Math.min(row - 1, own().ROW * ratio)));
      this.tracks.forEach((track, i) => paint(track, Math.floor(above + i * row), height));
    }

    // A match is at least a pixel wide, and nothing covers it.
    paintMatches(track, line, top, height) {
      const { timeline, raster } = this, { low, high } = timeline.whole, scale = raster.width / (high - low);
      const events = track.source.whole, match = timeline.matchOf(events), { codes, fixed } = own().categories(track, events);
      const { start, dur, name } = events, { shades } = track.source.palette;
      let done = 0;
      for (let i = line.first; i < line.last; i++) {
        if (!match[name[i]]) continue;
        const x0 = Math.floor((start[i] - low) * scale), x1 = Math.min(raster.width, Math.max(x0 + 1, Math.round((start[i] + dur[i] - low) * scale)));
        if (x1 <= done) continue;
        raster.fill(Math.max(done, x0), x1, top, top + height, shades[codes ? codes[i] : fixed][0].fill);
        done = x1;
      }
    }

    paint() {
      if (!this.width || !this.tracks) return;
      if (this.stale) this.paintPicture();
      const context = this.canvas.getContext("2d"), { ratio, config } = this.timeline;
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(this.picture, 0, 0);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.paintSteps(context, config);
      this.paintMarks(context, config.hues);
      this.paintWindow(context, config.hues);
    }

    // The starts of the steps, as far as there is room for marks.
    paintSteps(context, { steps, hues }) {
      context.fillStyle = hues.rule;
      let free = -Infinity;
      for (const x of steps.map(([at]) => Math.round(this.x(at)))) {
        if (x < free) continue;
        context.fillRect(x, 0, 1, STEPS_HEIGHT - 1);
        free = x + LEAST_STEP;
      }
    }

    // The selected range, and the selected event.
    paintMarks(context, { ink }) {
      const { range, focus } = this.timeline;
      context.fillStyle = ink;
      if (range) context.fillRect(this.x(range.low), 0, Math.max(2, this.x(range.high) - this.x(range.low)), 2);
      if (focus) context.fillRect(Math.round(this.x(focus.start)) - 1, 0, 2, HEIGHT);
    }

    paintWindow(context, { page, ink }) {
      const [x0, x1] = this.selected || this.window();
      context.fillStyle = page;
      context.globalAlpha = 0.65;
      context.fillRect(0, 0, x0, HEIGHT);
      context.fillRect(x1, 0, this.width - x1, HEIGHT);
      context.globalAlpha = 1;
      context.fillStyle = ink;
      for (const y of [0, HEIGHT - 1]) context.fillRect(x0, y, x1 - x0, 1);
      for (const x of [x0, x1 - 2]) context.fillRect(x, 0, 2, HEIGHT);
      for (const x of [x0, x1 - 4]) if (x1 - x0 > 4 * EDGE) context.fillRect(x, HEIGHT / 2 - 8, 4, 16);
    }

    x(at) {
      const { low, high } = this.timeline.whole;
      return ((at - low) / (high - low)) * this.width;
    }

    at(x) {
      const { low, high } = this.timeline.whole;
      return low + (Math.max(0, Math.min(this.width, x)) / this.width) * (high - low);
    }

    // The edges of the window in pixels; a window that is narrower than a mouse can hit is drawn wider.
    window() {
      const { low, high } = this.timeline.view, [x0, x1] = [this.x(low), this.x(high)];
      const room = Math.max(0, NARROWEST - (x1 - x0)), left = Math.min(x0 - room / 2, this.width - NARROWEST);
      return room ? [Math.max(0, left), Math.max(0, left) + NARROWEST] : [x0, x1];
    }

    // What a drag that begins at `x` does: it moves the window or one of its edges, or selects another window.
    partAt(x) {
      const [x0, x1] = this.window(), handles = x1 - x0 > 4 * EDGE;
      if (handles && Math.abs(x - x0) <= EDGE) return "low";
      if (handles && Math.abs(x - x1) <= EDGE) return "high";
      return x > x0 - EDGE && x < x1 + EDGE && !this.timeline.isWhole() ? "window" : "outside";
    }

    listen() {
      const { strip } = this, x = (event) => event.clientX - strip.getBoundingClientRect().left;
      strip.addEventListener("pointerdown", (event) => {
        if (event.button || !this.tracks) return;
        strip.setPointerCapture(event.pointerId);
        const part = event.shiftKey ? "outside" : this.partAt(x(event));
        this.drag = { x: x(event), part, view: { ...this.timeline.view }, moved: false };
      });
      strip.addEventListener("pointermove", (event) => {
        if (this.drag) this.dragTo(x(event));
        else if (this.tracks) strip.dataset.part = this.partAt(x(event));
      });
      strip.addEventListener("pointerup", (event) => this.drop(x(event)));
      strip.addEventListener("pointercancel", () => { this.drag = this.selected = null; this.timeline.request(); });
      strip.addEventListener("dblclick", () => this.timeline.showAll());
      strip.addEventListener("wheel", (event) => {
        event.preventDefault();
        this.timeline.zoom(Math.exp(event.deltaY * own().WHEEL), 0.5);
      }, { passive: false });
      strip.addEventListener("keydown", (event) => this.press(event));
    }

    dragTo(x) {
      const { drag, timeline } = this, { part, view } = drag;
      if (!drag.moved && Math.abs(x - drag.x) < MOVED) return;
      drag.moved = true;
      const by = this.at(x) - this.at(drag.x), least = own().SHORTEST;
      if (part === "low") timeline.show(Math.min(this.at(x), view.high - least), view.high);
      else if (part === "high") timeline.show(view.low, Math.max(this.at(x), view.low + least));
      else if (part === "window") timeline.show(view.low + by, view.high + by);
      else { this.selected = [drag.x, x].map((one) => this.x(this.at(one))).sort((a, b) => a - b); timeline.request(); }
    }

    // A click moves the middle of the window; a drag outside of it has selected another one.
    drop(x) {
      const { drag, selected, timeline } = this, { low, high } = timeline.view;
      this.drag = this.selected = null;
      if (drag && selected) timeline.show(...selected.map((one) => this.at(one)));
      else if (drag && !drag.moved) timeline.show(this.at(x) - (high - low) / 2, this.at(x) + (high - low) / 2);
    }

    press(event) {
      const { timeline } = this, { whole, view } = timeline, length = view.high - view.low;
      const action = {
        ArrowLeft: () => timeline.pan(-0.1), ArrowRight: () => timeline.pan(0.1),
        ArrowUp: () => timeline.zoom(0.8, 0.5), ArrowDown: () => timeline.zoom(1.25, 0.5),
        PageUp: () => timeline.pan(-1), PageDown: () => timeline.pan(1),
        Home: () => timeline.show(whole.low, whole.low + length), End: () => timeline.show(whole.high - length, whole.high),
      }[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    }

    // Tells assistive technology which part is visible.
    speak() {
      const { whole, view } = this.timeline, { duration } = own(), length = whole.high - whole.low;
      const middle = (view.low + view.high) / 2 - whole.low;
      this.strip.setAttribute("aria-valuenow", `${Math.round((100 * middle) / length)}`);
      this.strip.setAttribute("aria-valuetext", `${duration(view.low)} to ${duration(view.high)} of ${duration(length)}`);
    }
  }

  Object.assign(window.timeline, { Minimap });
})();
