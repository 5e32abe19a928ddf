// Draws what lies around and above the slices of a timeline: its axis, steps, cursor, selected range and selected event.
"use strict";

(function () {
  const own = () => window.timeline;
  const NAME_PX = 60;
  const FEW = 12;

  // The time axis; `held` is the lower edge of the pinned tracks.
  function paintRuler(timeline, context, held) {
    const { hues } = timeline.config, { low, high } = timeline.view;
    const { at, base } = own().ticks(low, high, timeline.width);
    context.textBaseline = "alphabetic";
    context.fillStyle = hues.soft;
    context.strokeStyle = hues.edge;
    context.beginPath();
    for (const tick of at) {
      const x = Math.round(timeline.x(tick.at)) + 0.5;
      context.fillText(tick.text, x + 3, 24);
      context.moveTo(x, 16);
      context.lineTo(x, own().RULER - 1);
    }
    context.moveTo(0, own().RULER - 1.5);
    context.lineTo(timeline.width, own().RULER - 1.5);
    if (timeline.tracks.pinnedHeight) { context.moveTo(0, held - 3.5); context.lineTo(timeline.width, held - 3.5); }
    context.stroke();
    const start = base ? `from ${own().duration(base)}` : "";
    if (start) context.fillText(start, timeline.width - context.measureText(start).width - 4, 11);
    paintSteps(timeline, context);
  }

  // Names the steps in sight above the axis, as far as there is room.
  function paintSteps(timeline, context) {
    context.fillStyle = timeline.config.hues.ink;
    timeline.marked = [];
    let free = -Infinity;
    for (const [i, [at, text]] of timeline.config.steps.entries()) {
      const x = timeline.x(at), next = timeline.config.steps[i + 1], label = Math.max(0, x);
      // A step that began before the left edge is named there, unless the next one begins so soon that its name is better.
      if (x > timeline.width || (x < 0 && next && timeline.x(next[0]) <= NAME_PX) || label < free) continue;
      context.fillText(text, label + 3, 11);
      free = label + context.measureText(text).width + 12;
      if (x >= 0) timeline.marked.push(x);
    }
  }

  // What changes without the slices: the cursor, the selected range, the steps and the selected event.
  function paintOverlay(timeline) {
    const context = timeline.overlay.getContext("2d"), { hues } = timeline.config;
    context.setTransform(timeline.ratio, 0, 0, timeline.ratio, 0, 0);
    context.clearRect(0, 0, timeline.width, timeline.height);
    context.fillStyle = hues.rule;
    context.globalAlpha = 0.5;
    for (const x of timeline.marked) context.fillRect(Math.round(x), 0, 1, timeline.height);
    context.globalAlpha = 1;
    if (timeline.range) paintRange(timeline, context, hues);
    if (timeline.focus && timeline.focus.track) {
      paintLaunches(timeline, context, hues);
      paintFocus(timeline, context, hues);
    }
    if (timeline.cursor) context.fillRect(Math.round(timeline.cursor.x), own().RULER, 1, timeline.height);
  }

  function paintRange(timeline, context, hues) {
    const [x0, x1] = [timeline.range.low, timeline.range.high].map((at) => timeline.x(at));
    context.globalAlpha = 0.12;
    context.fillStyle = hues.ink;
    context.fillRect(x0, own().RULER, x1 - x0, timeline.height);
    context.globalAlpha = 1;
    context.fillRect(x0, own().RULER, 1, timeline.height);
    context.fillRect(x1 - 1, own().RULER, 1, timeline.height);
    if (x1 < 0 || x0 > timeline.width) return;
    const text = own().duration(timeline.range.high - timeline.range.low);
    context.font = "600 11px system-ui, sans-serif";
    const width = context.measureText(text).width + 8, middle = Math.max(0, Math.min(timeline.width - width, (x0 + x1 - width) / 2));
    context.fillRect(middle, own().RULER + 2, width, 16);
    context.fillStyle = hues.page;
    context.fillText(text, middle + 4, own().RULER + 14);
  }

  function paintFocus(timeline, context, hues) {
    const { track, depth, start, dur } = timeline.focus, top = timeline.tracks.top(track, timeline.scroll.scrollTop);
    if (depth >= own().rows(track)) return;
    const y = top + depth * own().ROW, held = own().RULER + (track.pinned ? 0 : timeline.tracks.pinnedHeight);
    if (y + own().ROW <= held) return;
    const x0 = timeline.x(start), width = Math.max(3, timeline.x(start + dur) - x0);
    context.lineWidth = 2;
    for (const [colour, out] of [[hues.page, 0], [hues.ink, 1.5]]) {
      context.strokeStyle = colour;
      context.strokeRect(x0 - out, y - out, width + 2 * out, own().ROW - 1 + 2 * out);
    }
  }

  // Arrows from the calls to the work that they launched, if the outlined event is the clicked one.
  function paintLaunches(timeline, context, hues) {
    const { chosen } = timeline.config, { focus } = timeline;
    if (!chosen || chosen.row !== focus.row || chosen.file !== focus.file) return;
    const file = chosen.file;
    context.save();
    context.beginPath();
    context.rect(0, own().RULER, timeline.width, timeline.height);
    context.clip();
    // Many arrows would hide what they lie on.
    const many = chosen.launches.length > FEW;
    context.globalAlpha = many ? 0.4 : 1;
    for (const [colour, wide] of many ? [[hues.ink, 1]] : [[hues.page, 4], [hues.ink, 1.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.beginPath();
      for (const ends of chosen.launches) {
        const [from, to] = ends.map((end) => placeOf(timeline, { ...end, file }));
        if (from && to) arrow(context, from, to);
      }
      context.stroke();
    }
    context.restore();
  }

  // Where the left edge of an event is on the canvas; null if its track or line is not shown.
  function placeOf(timeline, end) {
    const track = timeline.tracks.of(end);
    if (!track || end.depth >= own().rows(track)) return null;
    return { x: timeline.x(end.start), y: timeline.tracks.top(track, timeline.scroll.scrollTop) + (end.depth + 0.5) * own().ROW };
  }

  function arrow(context, from, to) {
    const bend = Math.max(12, Math.abs(to.x - from.x) / 3), HEAD = 5;
    context.moveTo(from.x, from.y);
    context.bezierCurveTo(from.x + bend, from.y, to.x - bend, to.y, to.x, to.y);
    context.moveTo(to.x - HEAD, to.y - HEAD);
    context.lineTo(to.x, to.y);
    context.lineTo(to.x - HEAD, to.y + HEAD);
  }

  Object.assign(window.timeline, { paintRuler, paintOverlay });
})();
