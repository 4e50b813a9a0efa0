'use strict';
// Draws the part of the lanes that is in view. Nothing here takes longer for a longer trace: rows are walked in steps of a pixel.

const GUTTER = 176, AXIS_HEIGHT = 46, PHASES_TOP = 25, PHASES_HEIGHT = 15;
const FONT = '11px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';

// The colours of page.css, as they are now.
function readTheme() {
  const root = document.styleSheets[0].cssRules[0].style, now = getComputedStyle(document.documentElement);
  return Object.fromEntries(Array.from(root).filter(name => name.startsWith('--')).map(name => [name.slice(2), now.getPropertyValue(name).trim()]));
}

// Of text on a bar, where it is not `on-fill`.
const ON_FILL = {waiting: 'on-waiting', fail: 'surface'};

// States and phases of one kind have one colour.
const COLOURS = {join: 'joining', local_plan: 'planning', global_plan: 'global', write: 'moving', read: 'moving', finish: 'finishing'};
// By machine and number of the state, as in base/call_state.hpp.
const STATE_COLOURS = [
  [],
  ['', 'other-a', 'joining', 'planning', 'waiting', 'moving', 'waiting', 'finishing'],
  ['', 'other-a', 'joining', 'planning', 'global', 'moving', 'finishing', 'joining', 'global'],
  ['', 'other-a', 'joining', 'finishing'],
];
function colourName(word) {
  if (word in COLOURS) return COLOURS[word];
  let sum = 0;
  for (const letter of word) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return ['other-a', 'other-b', 'other-c'][sum % 3];
}

class Painter {
  constructor(canvas, model, lanes, view, times) {
    Object.assign(this, {canvas, model, lanes, view, times});
    this.context = canvas.getContext('2d', {alpha: false});
    this.widths = new Map();
    this.colours = model.names.map(name => colourName(name));
    this.failed = new Set(model.data.failures.map(failure => model.rankPlaces.get(failure.rank)));
    this.theme = readTheme();
    this.arrows = new Arrows(this);
  }

  get scale() { return (this.view.width - GUTTER) / (this.view.end - this.view.begin); }  // pixels a second
  x(time) { return GUTTER + (this.times.placeOf(time) - this.view.begin) * this.scale; }
  timeAt(x) { return this.times.timeOf(this.view.begin + (x - GUTTER) / this.scale); }
  y(down) { return down - this.view.scroll + AXIS_HEIGHT; }  // of a height among the lanes

  stateColour(at) { return STATE_COLOURS[this.model.machine[at]][this.model.state[at]]; }

  draw() {
    const {view, context: c, theme} = this;
    [this.from, this.to] = [view.begin, view.end].map(place => this.times.timeOf(place));
    c.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    c.fillStyle = theme.surface;
    c.fillRect(0, 0, view.width, view.height);
    c.font = FONT;
    c.textBaseline = 'middle';
    this.axis();
    this.labels = [];
    this.clip(GUTTER, AXIS_HEIGHT, view.width - GUTTER, view.height - AXIS_HEIGHT, () => {
      this.grid();
      this.eachVisibleRank((rank, place, top) => this.rank(rank, place, top));
      this.arrows.draw();
      this.matches();
      this.longest();
      this.failureLines();
      this.selection();
      this.foldMarks(AXIS_HEIGHT, view.height);
      this.drawLabels();
    });
    this.clip(0, AXIS_HEIGHT, GUTTER, view.height - AXIS_HEIGHT, () => this.gutter());
    c.fillStyle = theme['line-strong'];
    c.fillRect(GUTTER - 1, 0, 1, view.height);
  }

  clip(x, y, width, height, draw) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(x, y, width, height);
    c.clip();
    draw();
    c.restore();
  }

  eachVisibleRank(visit) {
    const {view, lanes} = this;
    for (let place = Math.max(0, lanes.rankAt(view.scroll)); place < lanes.ranks.length; ++place) {
      const top = this.y(lanes.ranks[place].top);
      if (top > view.height) break;
      visit(lanes.ranks[place], place, top);
    }
  }

  // --- time ---------------------------------------------------------------------------------------------------------------

  ticks() {
    const least = 110 / this.scale;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(it => it >= least);
    const times = [];
    let from = this.from;
    // None within a fold.
    for (const fold of [...this.times.folds, {from: Infinity, to: Infinity}]) {
      for (let i = Math.ceil(from / step); i * step <= Math.min(this.to, fold.from) && times.length < 100; ++i) times.push(i * step);
      from = Math.max(from, fold.to);
    }
    return {times, step};
  }
  tickText(time, step) {
    const most = Math.max(Math.abs(this.from), Math.abs(this.to), step);
    const [unit, factor] = most >= 1 ? ['s', 1] : most >= 1e-3 ? ['ms', 1e3] : most >= 1e-6 ? ['us', 1e6] : ['ns', 1e9];
    const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
    return `${(time * factor).toFixed(digits)} ${unit}`;
  }

  grid() {
    const {context: c, theme, view} = this;
    c.fillStyle = theme.line;
    for (const time of this.ticks().times) c.fillRect(Math.round(this.x(time)), AXIS_HEIGHT, 1, view.height);
  }

  axis() {
    const {context: c, theme, view, model} = this;
    c.fillStyle = theme.raised;
    c.fillRect(0, 0, view.width, AXIS_HEIGHT);
    c.fillStyle = theme.muted;
    c.textAlign = 'left';
    c.fillText('Time since the first call', 12, 13);
    c.fillText('Phase', 12, PHASES_TOP + PHASES_HEIGHT / 2);
    this.clip(GUTTER, 0, view.width - GUTTER, AXIS_HEIGHT, () => {
      const {times, step} = this.ticks();
      const folds = this.times.folds.map(({from, to}) => ({x0: this.x(from), x1: this.x(to), text: '+' + durationText(to - from)}));
      for (const time of times) {
        const x = Math.round(this.x(time)), text = this.tickText(time, step), end = x + 8 + this.width(text);
        c.fillStyle = theme['line-strong'];
        c.fillRect(x, 19, 1, 5);
        c.fillStyle = theme.muted;
        if (end <= view.width && !folds.some(({x0, x1}) => x < x1 && end > x0)) c.fillText(text, x + 4, 13);
      }
      for (const {x0, x1, text} of folds)
        if (this.width(text) + 4 < x1 - x0 && x0 >= GUTTER && x1 <= view.width) c.fillText(text, (x0 + x1 - this.width(text)) / 2, 13);
      this.labels = [];
      for (const phase of model.data.phases) {
        const x0 = this.x(phase.begin), x1 = this.x(phase.begin + phase.seconds);
        this.bar(x0, PHASES_TOP, x1 - x0, PHASES_HEIGHT, theme[colourName(phase.name)], `${phase.name}  ${durationText(phase.seconds)}`, {short: phase.name});
        if (!phase.ended && x1 - x0 > 4) this.ragged(x1, PHASES_TOP, PHASES_HEIGHT);
      }
      this.foldMarks(19, AXIS_HEIGHT);
      this.drawLabels();
    });
    c.fillStyle = theme['line-strong'];
    c.fillRect(0, AXIS_HEIGHT - 1, view.width, 1);
  }

  // --- ranks --------------------------------------------------------------------------------------------------------------

  rank(rank, place, top) {
    const {context: c, theme, view, model, lanes} = this;
    const info = model.ranks[place];
    const height = rank.bottom - rank.top;
    if (this.failed.has(place)) {
      c.globalAlpha = 0.55;
      c.fillStyle = theme['fail-soft'];
      c.fillRect(GUTTER, top, view.width, height);
      c.globalAlpha = 1;
    }
    c.fillStyle = theme.line;
    c.fillRect(0, Math.round(top + height) - 1, view.width, 1);
    if (info.missing) {
      this.silence(GUTTER, top, view.width - GUTTER, rank.line.height, 'no trace of this rank');
      return;
    }
    const isGone = this.failed.has(place) && info.failures.some(failure => failure.gone);
    if (isGone || model.data.end === 'unfinished') {
      const x = this.x(info.end);
      this.silence(Math.max(GUTTER, x), top, this.x(model.end) - x, rank.line.height, isGone ? 'no sign of life' : '');
    }
    const {line} = rank;
    for (const row of rank.states.rows) this.spans(row, top + line.top, line.states, at => this.stateColour(at), at => model.stateName(at));
    for (const row of rank.hooks) this.spans(row, top + line.hooks, line.hooksHeight, at => this.hookColour(at), null);
    if (!rank.isOpen) {
      for (const lane of rank.lanes) this.points(lane, top + line.top + line.states / 2, line.height / LINES[0].height);
      return;
    }
    for (const lane of rank.lanes) {
      if (!lanes.hasOwnLine(rank, lane)) continue;
      const y = lane.top - lanes.ranks[place].top + top;
      if (y > view.height || y + lane.height < AXIS_HEIGHT) continue;
      c.fillStyle = theme.line;
      c.globalAlpha = 0.5;
      c.fillRect(GUTTER, Math.round(y), view.width, 1);
      c.globalAlpha = 1;
      lane.rows.forEach((row, index) => this.spans(
        row, y + LANE_GAP / 2 + index * ROW_HEIGHT + 1, ROW_HEIGHT - 3,
        at => lane.isMachine ? this.stateColour(at) : this.spanColour(at),
        at => lane.isMachine ? model.stateName(at) : model.names[model.name[at]], index === 0 ? lane.pointTimes : []));
      this.points(lane, y + LANE_GAP / 2 + ROW_HEIGHT / 2, 0);
    }
  }

  hookColour(at) {
    if (this.model.hasFailed(at)) return 'fail';
    const phase = this.model.phase[at];
    return phase !== 0 ? this.colours[phase] : this.colours[this.model.actor[at]];
  }
  spanColour(at) {
    const {model} = this;
    if (model.hasFailed(at)) return 'fail';
    return model.kind[at] === HANDLED ? 'handler' : this.hookColour(at);
  }

  silence(x, y, width, height, text) {
    const {context: c, theme} = this;
    if (width <= 0) return;
    c.fillStyle = theme.silence;
    c.fillRect(x, y + 3, width, height - 6);
    c.fillStyle = theme.muted;
    c.fillText(this.fit(text, width - 20), Math.max(x, GUTTER) + 10, y + height / 2);
  }

  // A row in steps of at least a pixel: what is narrower is drawn together, the darker the more of it there is.
  spans(row, y, height, colourOf, labelOf, points) {
    const {context: c, theme, view, model} = this;
    const {begins, ends, events} = row;
    let i = lowerBound(ends, this.from);
    while (i < events.length && begins[i] <= this.to) {
      const x0 = this.x(begins[i]), x1 = this.x(ends[i]);
      if (x1 - x0 >= 1.5) {
        const colour = colourOf(events[i]);
        this.bar(x0, y, x1 - x0, height, theme[colour], labelOf === null ? '' : labelOf(events[i]), {points, on: ON_FILL[colour]});
        if (model.kind[events[i]] === BEGAN) this.ragged(x1, y, height);
        ++i;
        continue;
      }
      // All of this pixel, up to the first that is wide enough for a bar of its own.
      const pixelEnd = lowerBound(begins, this.timeAt(Math.floor(x0) + 1), i);
      let next = i + 1;
      while (next < pixelEnd && this.x(ends[next]) - this.x(begins[next]) < 1.5) ++next;
      const busy = Math.min(1, 0.55 + 0.15 * (next - i));
      let shown = events[i];
      for (let j = i; j < Math.min(next, i + 64); ++j)
        if (model.hasFailed(events[j])) shown = events[j];
      c.globalAlpha = busy;
      c.fillStyle = theme[colourOf(shown)];
      c.fillRect(Math.floor(x0), y, 1.5, height);
      c.globalAlpha = 1;
      i = next;
    }
  }

  // `short`: the label where there is no room for all of it. `on`: the colour of text on this bar.
  bar(x, y, width, height, colour, label, {short = label, points = [], on = 'on-fill'} = {}) {
    const {context: c, theme, view} = this;
    const left = Math.max(x, GUTTER - 4), right = Math.min(x + width, view.width + 4);
    if (right <= left) return;
    c.fillStyle = colour;
    c.beginPath();
    c.roundRect(left, y, Math.max(1, right - left - (width > 3 ? 0.75 : 0)), height, width > 6 && height > 8 ? 2 : 0);
    c.fill();
    if (label === '' || height < 10) return;
    const [from, room] = this.roomFor(this.width(label), ...this.besideFolds(Math.max(left, GUTTER) + 5, right - 4), points);
    const text = room < 14 ? '' : this.fit(this.width(label) <= room ? label : short, room);
    if (text !== '') this.labels.push({text, x: from, y: y + height / 2, height, fill: colour, colour: theme[on]});
  }
  // The part of this that is before the first fold, or behind a fold in which it begins.
  besideFolds(left, right) {
    for (const {from, to} of this.times.folds) {
      const x0 = this.x(from), x1 = this.x(to);
      if (x0 > left) return [left, Math.min(right, x0 - 6)];
      left = Math.max(left, x1 + 6);
    }
    return [left, right];
  }
  // The first place from `left` to `right` that is so wide, or else the widest, between the points that are drawn there.
  roomFor(width, left, right, points) {
    let best = [left, 0], from = left;
    for (let i = lowerBound(points, this.timeAt(left - 8)), seen = 0; best[1] < width && from < right && seen < 50; ++i, ++seen) {
      const to = Math.min(right, i < points.length ? this.x(points[i]) - 8 : Infinity);
      if (to - from > best[1]) best = [from, to - from];
      from = i < points.length ? Math.max(left, to + 16) : Infinity;
    }
    return best;
  }
  // Above all else, on the colour of what they name: nothing crosses them. Where one is in the way of a mark's, it is left out.
  drawLabels() {
    const c = this.context, width = label => this.width(label.text) + 6, marks = this.labels.filter(label => label.isMark);
    const isInTheWay = (label, mark) => label !== mark && Math.abs(label.y - mark.y) < (label.height + mark.height) / 2 - 2 &&
      label.x < mark.x + width(mark) && mark.x < label.x + width(label);
    this.labels = this.labels.filter(label => label.isMark || !marks.some(mark => isInTheWay(label, mark)));
    for (const label of this.labels) {
      const {text, x, y, height, fill, colour} = label;
      c.fillStyle = fill;
      c.fillRect(x - 3, y - height / 2 + 1, width(label), height - 2);
      c.fillStyle = colour;
      c.fillText(text, x, y + 0.5);
    }
  }

  // The end of what has not ended.
  ragged(x, y, height) {
    const {context: c, theme} = this;
    c.fillStyle = theme.surface;
    c.beginPath();
    c.moveTo(x + 1, y);
    for (let i = 0; i < 4; ++i) c.lineTo(x - (i % 2 === 0 ? 4 : 0), y + height * (i + 0.5) / 4);
    c.lineTo(x + 1, y + height);
    c.fill();
  }

  // `summed`: how high a line that sums up is, and then only what is important; 0: everything.
  points(lane, y, summed) {
    const {view, model} = this;
    const {pointTimes, points} = lane;
    let i = lowerBound(pointTimes, this.from);
    while (i < points.length && pointTimes[i] <= this.to) {
      const x = this.x(pointTimes[i]);
      const next = Math.max(i + 1, lowerBound(pointTimes, this.timeAt(Math.floor(x) + 3), i));
      let shown = points[i];
      for (let j = i; j < Math.min(next, i + 64); ++j)
        if (this.weight(points[j]) > this.weight(shown)) shown = points[j];
      if (summed === 0 || this.weight(shown) > 1) this.point(shown, this.x(model.time[shown]), y, summed === 0 || summed === 1 ? 1 : summed + 0.2);
      i = next;
    }
  }
  weight(at) {
    const {model} = this;
    if (model.flags[at] & (FAILED | LOST)) return 3;
    return model.kind[at] === CALL || model.kind[at] === OUTCOME ? 2 : 1;
  }
  point(at, x, y, size) {
    const {context: c, theme, model} = this;
    const kind = model.kind[at];
    c.beginPath();
    if (kind === SENT) {  // a small arrow, off
      c.fillStyle = model.flags[at] & LOST ? theme.fail : theme.arrow;
      c.moveTo(x - 2, y - 4);
      c.lineTo(x + 3, y);
      c.lineTo(x - 2, y + 4);
    } else if (model.hasFailed(at)) {
      c.fillStyle = theme.fail;
      c.moveTo(x, y - 6 * size);
      c.lineTo(x + 6 * size, y);
      c.lineTo(x, y + 6 * size);
      c.lineTo(x - 6 * size, y);
    } else {
      c.fillStyle = kind === OUTCOME ? theme.good : kind === CALL ? theme.accent : theme.muted;
      c.arc(x, y, (kind === OUTCOME || kind === CALL ? 4 : 3) * size, 0, 7);
    }
    c.fill();
    c.strokeStyle = theme.surface;
    c.lineWidth = 1;
    c.stroke();
  }

  // --- what is marked -----------------------------------------------------------------------------------------------------

  matches() {
    const {context: c, theme, view, model, lanes} = this;
    if (view.matches.length === 0) return;
    c.fillStyle = theme.match;
    const seen = new Set();
    for (let i = lowerBound(view.matchTimes, this.from); i < view.matches.length && view.matchTimes[i] <= this.to; ++i) {
      const at = view.matches[i];
      const x = Math.round(this.x(model.time[at])), y = this.y(lanes.yOf(at));
      if (y < AXIS_HEIGHT - 20 || y > view.height + 20) continue;
      const key = x * 65536 + Math.round(y);
      if (seen.has(key)) continue;
      seen.add(key);
      c.fillRect(x - 1.5, y - 9, 3, 18);
      if (seen.size > 20000) break;
    }
  }

  failureLines() {
    const {context: c, theme, view, model} = this;
    for (const failure of model.data.failures) {
      if (failure.event < 0) continue;
      const x = Math.round(this.x(failure.at));
      if (x < GUTTER || x > view.width) continue;
      c.fillStyle = theme.fail;
      c.globalAlpha = 0.8;
      c.fillRect(x, AXIS_HEIGHT, 1, view.height);
      c.globalAlpha = 1;
      const place = model.rankPlaces.get(failure.rank);
      const top = this.y(this.lanes.ranks[place].top);
      const text = failure.label, width = this.width(text) + 12;
      this.labels.push({text, x: Math.min(x, view.width - width - 4) + 6, y: top + 12, height: 18, fill: theme.fail, colour: theme.surface, isMark: true});
    }
  }

  // What took longest, in a frame.
  longest() {
    const {context: c, theme, view, model} = this;
    if (!model.data.longest) return;
    const {rank, what, begin, seconds} = model.data.longest;
    const x0 = Math.max(this.x(begin), GUTTER - 4), x1 = Math.min(this.x(begin + seconds), view.width + 4);
    const row = this.lanes.ranks[model.rankPlaces.get(rank)], top = this.y(row.top);
    if (x1 < GUTTER || x0 > view.width) return;
    c.strokeStyle = this.isSlow ? theme.warn : theme.text;
    c.lineWidth = this.isSlow ? 2 : 1;
    c.strokeRect(x0, top + 1, Math.max(3, x1 - x0), row.line.height - 3);
    const text = `longest: ${what}, ${durationText(seconds)}`, width = this.width(text), [from, to] = this.besideFolds(Math.max(x0, GUTTER), x1);
    if (to - from > width + 140 && row.line === LINES[0]) this.labels.push({text, x: (from + to - width) / 2, y: top + 12, height: 16, fill: c.strokeStyle, colour: theme.surface, isMark: true});
  }

  // Where time is folded.
  foldMarks(top, bottom) {
    const {context: c, theme, view} = this;
    for (const {from, to} of this.times.folds) {
      const x0 = this.x(from), x1 = this.x(to);
      if (x1 < GUTTER || x0 > view.width) continue;
      c.globalAlpha = 0.75;
      c.fillStyle = theme.page;
      c.fillRect(x0, top, x1 - x0, bottom - top);
      c.globalAlpha = 1;
      c.strokeStyle = theme['line-strong'];
      c.lineWidth = 1;
      for (const x of [x0, x1]) {
        c.beginPath();
        for (let y = top; y < bottom + 6; y += 6) c.lineTo(x + (y / 6 % 2 < 1 ? -2 : 2), y);
        c.stroke();
      }
    }
  }

  // The selected event in a frame, and the chain that led to it.
  selection() {
    const {context: c, theme, view, model, lanes} = this;
    if (view.selected < 0) return;
    c.strokeStyle = c.fillStyle = theme.accent;
    c.lineWidth = 1.75;
    const places = view.chain.slice(-400).map(at => [this.x(model.time[at]), this.y(lanes.yOf(at))]);
    c.globalAlpha = 0.75;
    c.beginPath();
    for (const place of places) c.lineTo(...place);
    c.stroke();
    for (const [x, y] of places) {
      c.beginPath();
      c.arc(x, y, 2.5, 0, 7);
      c.fill();
    }
    c.globalAlpha = 1;
    const [begin, end] = lanes.extentOf(view.selected);
    const y = this.y(lanes.yOf(view.selected));
    const half = Math.min(ROW_HEIGHT, lanes.ranks[model.rank[view.selected]].line.height) / 2;
    // At least so wide that it is seen, and not much wider than the view.
    const middle = this.x((begin + end) / 2);
    const left = Math.max(-10, Math.min(this.x(begin) - 2, middle - 7)), right = Math.min(view.width + 10, Math.max(this.x(end) + 2, middle + 7));
    c.lineWidth = 2;
    c.beginPath();
    c.roundRect(left, y - half, right - left, 2 * half, 3);
    c.stroke();
  }

  gutter() {
    const {context: c, theme, view, model, lanes} = this;
    c.fillStyle = theme.raised;
    c.fillRect(0, AXIS_HEIGHT, GUTTER, view.height);
    c.textAlign = 'left';
    this.eachVisibleRank((rank, place, top) => {
      const isFailed = this.failed.has(place);
      if (isFailed) {
        c.fillStyle = theme['fail-soft'];
        c.fillRect(0, top, GUTTER - 1, rank.bottom - rank.top);
        c.fillStyle = theme.fail;
        c.fillRect(0, top, 3, rank.bottom - rank.top - 1);
      }
      c.fillStyle = theme.line;
      // Lines between the lowest ones would cross the names.
      if (rank.line !== LINES[2]) c.fillRect(0, Math.round(top + rank.bottom - rank.top) - 1, GUTTER - 1, 1);
    });
    this.eachVisibleRank((rank, place, top) => {
      const info = model.ranks[place];
      const isFailed = this.failed.has(place);
      // Of the lowest lines there is room for the name of every other one.
      if (rank.line === LINES[2] && place % 2 !== 0) return;
      const middle = top + rank.line.height / 2;
      c.fillStyle = theme.faint;
      c.beginPath();
      if (rank.isOpen) [[10, -2], [17, -2], [13.5, 3]].forEach(([x, y]) => c.lineTo(x, middle + y));
      else [[11, -4], [16, 0], [11, 4]].forEach(([x, y]) => c.lineTo(x, middle + y));
      c.fill();
      c.font = '600 ' + FONT;
      c.fillStyle = isFailed ? theme.fail : theme.text;
      const name = `rank ${info.number}`;
      c.fillText(name, 24, middle);
      const after = 24 + c.measureText(name).width + 8;
      c.font = FONT;
      c.fillStyle = isFailed ? theme.fail : theme.muted;
      const isLongest = this.isSlow && model.data.longest?.rank === info.number;
      if (isLongest && !isFailed) c.fillStyle = theme.warn;
      const role = isFailed ? info.failures[0].kind : isLongest ? 'slow' : info.missing ? 'no trace' : info.number === model.data.coordinator ? 'coordinates' : info.host;
      c.fillText(this.fit(role, GUTTER - 10 - after), after, middle);
      if (!rank.isOpen) return;
      c.fillStyle = theme.muted;
      for (const lane of rank.lanes) {
        if (!lanes.hasOwnLine(rank, lane)) continue;
        c.fillText(this.fit(lane.isMachine ? `${lane.label}'s state` : lane.label, GUTTER - 40), 34, lane.top - rank.top + top + LANE_GAP / 2 + ROW_HEIGHT / 2);
      }
    });
  }

  // --- text ---------------------------------------------------------------------------------------------------------------

  width(text) {
    if (this.widths.size > 20000) this.widths.clear();
    if (!this.widths.has(text)) this.widths.set(text, this.context.measureText(text.slice(0, 400)).width);
    return this.widths.get(text);
  }
  fit(text, width) {
    if (this.width(text) <= width) return text;
    const letters = Array.from(text.slice(0, 400));
    const keep = Math.floor(letters.length * width / this.width(text)) - 1;
    return keep < 2 ? '' : letters.slice(0, keep).join('') + '…';
  }
}
