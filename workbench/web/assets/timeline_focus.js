// Moves the outline on a timeline from event to event: along a line, between lines, and to what a search found.
"use strict";

(function () {
  const own = () => window.timeline;
  const { SHORTEST } = own();

  // Shows the outlined event with half of its duration on each side.
  function fit(timeline) {
    if (!timeline.focus) return;
    const { start, dur } = timeline.focus, room = Math.max(SHORTEST, dur) / 2;
    timeline.show(start - room, start + dur + room);
  }

  // Selects the time of the outlined event.
  function pickFocus(timeline) {
    if (!timeline.focus || !timeline.focus.track) return;
    timeline.range = { low: timeline.focus.start, high: timeline.focus.start + timeline.focus.dur, tracks: [timeline.focus.track] };
    timeline.picked();
  }

  // Moves the outline to another event of the same line, and the view to it where it is out of sight.
  function step(timeline, by) {
    const focus = timeline.focus || firstFocus(timeline), line = focus && focus.track && timeline.lineOf(focus);
    if (!line) return;
    const events = focus.track.source.events(timeline.view);
    const at = events.from(line, focus.start), i = Math.max(line.first, Math.min(line.last - 1, timeline.focus ? at + by : at));
    timeline.focusOn({ ...focus, events, i });
    reveal(timeline);
  }

  // Moves the outline to the line above or below, to the event there at the same time.
  function climb(timeline, by) {
    const focus = timeline.focus || firstFocus(timeline);
    if (!focus || !focus.track) return;
    const places = timeline.tracks.all.flatMap((track) => Array.from({ length: own().rows(track) }, (_, depth) => ({ track, depth })));
    const index = places.findIndex(({ track, depth }) => track === focus.track && depth === focus.depth);
    for (let next = index + by; next >= 0 && next < places.length; next += by) {
      const place = places[next], line = timeline.lineOf(place), events = place.track.source.events(timeline.view);
      if (!line) continue;
      timeline.focusOn({ ...place, events, i: Math.min(line.last - 1, events.firstVisible(line, focus.start)) });
      reveal(timeline);
      return;
    }
  }

  // The first event in sight: where the keyboard begins.
  function firstFocus(timeline) {
    for (const track of timeline.tracks.all) {
      const line = timeline.lineOf({ track, depth: 0 }), events = track.source.events(timeline.view);
      const i = line ? events.from(line, timeline.view.low) : 0;
      if (line && i < line.last) return { track, depth: 0, start: events.start[i] };
    }
    return null;
  }

  // Moves the view and the scroll bar so that the outlined event is in sight.
  function reveal(timeline) {
    const { start, dur, track, depth } = timeline.focus, { low, high } = timeline.view;
    if (start < low || start > high || start + dur < low) timeline.show(start - (high - low) / 2, start + (high - low) / 2);
    const y = timeline.tracks.top(track, timeline.scroll.scrollTop) + depth * own().ROW;
    const held = own().RULER + timeline.tracks.pinnedHeight;
    if (!track.pinned && y < held) timeline.scroll.scrollTop -= held - y + own().ROW;
    if (y + own().ROW > timeline.height) timeline.scroll.scrollTop += y + 2 * own().ROW - timeline.height;
  }

  // Moves to the next or previous event that matches, and closer if it would be too narrow to see.
  function seek(timeline, back) {
    if (!timeline.sought) return;
    const { low, high } = timeline.view, focus = timeline.focus;
    const at = focus && focus.start >= low && focus.start <= high ? focus.start : back ? high : low;
    const hits = timeline.sources.flatMap((source) => {
      const events = source.whole, i = events.nextMatch(timeline.matchOf(events), at, back, events.lines);
      return i < 0 ? [] : [{ source, events, i, start: events.start[i] }];
    });
    if (!hits.length) { timeline.spoken.textContent = "no further match"; return; }
    const { source, events, i } = hits.reduce((best, hit) => ((hit.start < best.start) !== back ? hit : best));
    const line = events.lineOf(i), track = timeline.tracks.all.find((one) => one.source === source && one.lane === line.lane);
    if (track.folded && line.depth) { track.folded = false; timeline.rearrange(); }
    timeline.focusOn({ track, depth: line.depth, events, i });
    const length = Math.min(high - low, Math.max(events.dur[i] * 20, SHORTEST * 10)), middle = events.start[i] + events.dur[i] / 2;
    timeline.show(middle - length / 2, middle + length / 2);
    reveal(timeline);
  }

  Object.assign(window.timeline, { fit, pickFocus, step, climb, seek });
})();
