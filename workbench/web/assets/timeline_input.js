// Mouse, touch and keys on a timeline. A gesture changes the view, the selected range or the focused event.
"use strict";

(function () {
  const MOVED = 4;
  const SNAP = 7;
  const WHEEL = 0.0016;
  const HELD = { w: "in", s: "out", a: "left", d: "right", "+": "in", "=": "in", "-": "out" };
  const FACTOR = 3.2;
  const SPEED = 0.9;

  // Lets the mouse and fingers act on the timeline.
  function listen(timeline) {
    const { overlay, scroll } = timeline, fingers = new Map();
    let drag = null;
    const at = (event) => {
      const box = overlay.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    overlay.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      overlay.setPointerCapture(event.pointerId);
      const { x, y } = at(event);
      fingers.set(event.pointerId, x);
      drag = { x, y, view: { ...timeline.view }, scroll: scroll.scrollTop, selects: event.shiftKey || y < window.timeline.RULER, moved: false };
    });
    overlay.addEventListener("pointermove", (event) => {
      const place = at(event);
      timeline.cursor = place;
      if (fingers.size === 2 && fingers.has(event.pointerId)) pinch(timeline, fingers, event.pointerId, place.x);
      else if (drag) dragTo(timeline, drag, place, event.pointerType);
      else timeline.hover(place);
    });
    const end = (event) => {
      fingers.delete(event.pointerId);
      if (drag && !drag.moved && event.type === "pointerup") timeline.click(at(event));
      if (drag && drag.moved && drag.selects) timeline.picked();
      if (!fingers.size) drag = null;
    };
    overlay.addEventListener("pointerup", end);
    overlay.addEventListener("pointercancel", end);
    overlay.addEventListener("pointerleave", () => { timeline.cursor = null; timeline.hover(null); });
    overlay.addEventListener("dblclick", (event) => timeline.fitAt(at(event)));
    overlay.addEventListener("wheel", (event) => {
      event.preventDefault();
      const across = event.shiftKey ? event.deltaY : event.deltaX;
      if (Math.abs(across) > Math.abs(event.shiftKey ? 0 : event.deltaY)) timeline.pan(across / timeline.width);
      else timeline.zoom(Math.exp(event.deltaY * WHEEL * (event.deltaMode ? 30 : 1)), at(event).x / timeline.width);
    }, { passive: false });
  }

  function dragTo(timeline, drag, { x, y }, pointer) {
    if (!drag.moved && Math.hypot(x - drag.x, y - drag.y) < MOVED) return;
    drag.moved = true;
    const { low, high } = drag.view, perPixel = (high - low) / timeline.width;
    if (drag.selects) {
      timeline.pick([drag, { x, y }].map((place) => ({ ...place, at: snapped(timeline, place, low + place.x * perPixel) })));
      return;
    }
    if (pointer !== "touch") timeline.scroll.scrollTop = drag.scroll + drag.y - y;
    timeline.show(low - (x - drag.x) * perPixel, high - (x - drag.x) * perPixel);
  }

  // Two fingers: the distance between them zooms, around the one that rests.
  function pinch(timeline, fingers, moving, x) {
    const other = [...fingers].find(([id]) => id !== moving)[1], before = Math.abs(fingers.get(moving) - other);
    fingers.set(moving, x);
    if (before > 10 && Math.abs(x - other) > 10) timeline.zoom(before / Math.abs(x - other), other / timeline.width);
  }

  // The start or end of an event near the mouse, so that a gap between two events can be measured exactly.
  function snapped(timeline, { y }, at) {
    const found = timeline.tracks.at(y, timeline.scroll.scrollTop);
    const line = found && timeline.lineOf(found);
    if (!line) return at;
    const events = found.track.source.events(timeline.view), near = (SNAP * (timeline.view.high - timeline.view.low)) / timeline.width;
    const i = events.from(line, at);
    const edges = [i - 1, i].filter((one) => one >= line.first && one < line.last).flatMap((one) => [events.start[one], events.start[one] + events.dur[one]]);
    const best = edges.reduce((best, edge) => (Math.abs(edge - at) < Math.abs(best - at) ? edge : best), Infinity);
    return Math.abs(best - at) <= near ? best : at;
  }

  // Keys that move the view as long as they are held, such as W.
  class HeldKeys {
    constructor() { this.down = new Set(); }

    // Moves the view by what the held keys ask for in `seconds`; false if none is held.
    move(timeline, seconds) {
      if (!this.down.size) return false;
      const by = (a, b) => this.down.has(a) - this.down.has(b);
      const place = timeline.cursor ? timeline.cursor.x / timeline.width : 0.5;
      if (by("out", "in")) timeline.zoom(FACTOR ** (by("out", "in") * seconds), place);
      if (by("right", "left")) timeline.pan(SPEED * by("right", "left") * seconds);
      return true;
    }

    handle(event, timeline) {
      const action = HELD[event.key.toLowerCase()];
      if (!action) return false;
      // A short press moves by a visible amount, too.
      if (event.type === "keydown" && !event.repeat) { this.down.add(action); this.move(timeline, 0.12); timeline.request(); }
      if (event.type === "keyup") this.down.delete(action);
      return true;
    }
  }

  const ACTIONS = {
    ArrowLeft: (timeline) => window.timeline.step(timeline, -1), ArrowRight: (timeline) => window.timeline.step(timeline, 1),
    ArrowUp: (timeline) => window.timeline.climb(timeline, -1), ArrowDown: (timeline) => window.timeline.climb(timeline, 1),
    ",": (timeline) => window.timeline.step(timeline, -1), ".": (timeline) => window.timeline.step(timeline, 1),
    Enter: (timeline) => timeline.open(), f: (timeline) => window.timeline.fit(timeline), m: (timeline) => window.timeline.pickFocus(timeline),
    n: (timeline) => window.timeline.seek(timeline, false), N: (timeline) => window.timeline.seek(timeline, true), 0: (timeline) => timeline.showAll(),
    Escape: (timeline) => timeline.pick(null),
  };
  const EVERYWHERE = new Set(["w", "a", "s", "d", "+", "=", "-", "f", "m", "n", "N", "0", "Escape", "/"]);

  // Lets keys act on the timeline that `current()` returns: all of them while it has the focus, and letters while nothing
  // that takes text has it.
  function listenToKeys(current) {
    document.addEventListener("keyup", (event) => current()?.held.handle(event, current()));
    window.addEventListener("blur", () => current()?.held.down.clear());
    document.addEventListener("keydown", (event) => {
      const timeline = current();
      if (!timeline || !timeline.tracks || event.ctrlKey || event.metaKey || event.altKey) return;
      const own = event.target === timeline.overlay;
      const loose = [document.body, document.getElementById("page"), timeline.minimap.strip].includes(event.target);
      if (!own && !(loose && EVERYWHERE.has(event.key))) return;
      if (event.key === "/") document.getElementById("event-name")?.focus();
      else if (ACTIONS[event.key]) ACTIONS[event.key](timeline);
      else if (!timeline.held.handle(event, timeline)) return;
      event.preventDefault();
    });
  }

  Object.assign(window.timeline, { listen, listenToKeys, HeldKeys, WHEEL });
})();
