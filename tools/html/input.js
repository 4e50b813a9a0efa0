'use strict';
// What lies over the chart and above it, and what keys and the pointer do there.

const NEAR = 7, ON = 2.5;  // pixels

// The event under the pointer: a span, a point or an arrow's message; -1: none.
function eventAt(page, x, y) {
  const {painter, lanes, model, view} = page;
  if (x < GUTTER || y < AXIS_HEIGHT) return -1;
  const down = y - AXIS_HEIGHT + view.scroll;
  const place = lanes.rankAt(down);
  const arrow = arrowAt(painter, x, y);
  if (place < 0) return arrow.head;
  const rank = lanes.ranks[place];
  const time = painter.timeAt(x), reach = NEAR / painter.scale;
  let best = -1, least = NEAR;
  const offer = (at, distance) => {
    if (distance < least) [best, least] = [at, distance];
  };
  const point = (lane, isImportantOnly) => {
    for (let i = lowerBound(lane.pointTimes, time - reach); i < lane.points.length && lane.pointTimes[i] <= time + reach; ++i)
      if (!isImportantOnly || painter.weight(lane.points[i]) > 1)
        offer(lane.points[i], Math.abs(painter.x(lane.pointTimes[i]) - x) - painter.weight(lane.points[i]));
  };
  const span = row => {
    for (let i = lowerBound(row.ends, time - reach); i < row.events.length && row.begins[i] <= time + reach; ++i)
      offer(row.events[i], Math.max(0, painter.x(row.begins[i]) - x, x - painter.x(row.ends[i])) + 0.5);
  };
  const within = down - rank.top;
  if (within < SUMMARY_HEIGHT) {
    if (!rank.isOpen) rank.lanes.forEach(lane => point(lane, true));
    if (best < 0) (within < 18 ? rank.states.rows : rank.hooks).forEach(span);
  } else {
    const lane = rank.lanes.find(it => lanes.hasOwnLine(rank, it) && down >= it.top && down < it.top + it.height);
    if (lane === undefined) return arrow.head;
    const row = lane.rows[Math.floor((down - lane.top - LANE_GAP / 2) / ROW_HEIGHT)];
    point(lane, false);
    if (row !== undefined) span(row);
  }
  // An arrow lies above spans, unless there are so many that it is nobody's aim.
  const isOnArrow = arrow.distance < ON && painter.arrows.drawn.length < 500 && (best < 0 || model.begin[best] < model.time[best] || model.isChangeOfState(best));
  return best >= 0 && !isOnArrow ? best : arrow.head;
}

// The message whose arrow passes there: its handling, and how far off it is.
function arrowAt(painter, x, y) {
  let head = -1, least = 5;
  for (const arrow of painter.arrows.drawn) {
    const {x0, y0, x1, y1} = arrow;
    if (x < Math.min(x0, x1) - 60 || x > Math.max(x0, x1) + 60 || y < Math.min(y0, y1) - 3 || y > Math.max(y0, y1) + 3) continue;
    const bend = Math.min(60, Math.max(6, Math.abs(x1 - x0) / 2));
    const steps = 24 + Math.ceil(Math.abs(y1 - y0) / 8 + Math.min(2000, Math.abs(x1 - x0)) / 8);
    for (let i = 0; i <= steps; ++i) {
      const t = i / steps, s = 1 - t;
      const px = s * s * s * x0 + 3 * s * s * t * (x0 + bend) + 3 * s * t * t * (x1 - bend) + t * t * t * x1;
      const py = s * s * s * y0 + 3 * s * s * t * y0 + 3 * s * t * t * y1 + t * t * t * y1;
      const distance = Math.hypot(px - x, py - y);
      if (distance < least) [head, least] = [arrow.head, distance];
    }
  }
  return {head, distance: least};
}

// --- over the chart -------------------------------------------------------------------------------------------------------

function drawOverlay(page) {
  const {overlay, view, painter, lanes, model} = page;
  const c = overlay.getContext('2d');
  c.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  c.clearRect(0, 0, view.width, view.height);
  if (model.count === 0) {
    c.fillStyle = painter.theme.muted;
    c.font = '14px ' + FONT.slice(5);
    c.textAlign = 'center';
    c.fillText('No events are in this trace.', (view.width + GUTTER) / 2, view.height / 2);
    return;
  }
  c.save();
  c.beginPath();
  c.rect(GUTTER, AXIS_HEIGHT, view.width, view.height);
  c.clip();
  const place = at => [painter.x(model.time[at]), lanes.yOf(at) - view.scroll + AXIS_HEIGHT];
  if (page.selected >= 0) {
    c.strokeStyle = c.fillStyle = painter.theme.accent;
    c.lineWidth = 1.75;
    c.globalAlpha = 0.75;
    c.lineJoin = 'round';
    c.beginPath();
    for (const at of page.chain.slice(-400)) c.lineTo(...place(at));
    c.stroke();
    for (const at of page.chain.slice(-400)) {
      c.beginPath();
      c.arc(...place(at), 2.5, 0, 7);
      c.fill();
    }
    c.globalAlpha = 1;
    frame(c, page, page.selected, painter.theme.accent, 2);
  }
  if (page.hovered >= 0) frame(c, page, page.hovered, painter.theme.text, 1);
  if (page.mark) {
    c.globalAlpha = 0.18;
    c.fillStyle = painter.theme.accent;
    c.fillRect(Math.min(...page.mark), AXIS_HEIGHT, Math.abs(page.mark[0] - page.mark[1]), view.height);
  }
  c.restore();
}

function frame(c, page, at, colour, width) {
  const {painter, lanes, view, model} = page;
  const [begin, end] = lanes.extentOf(at);
  const x0 = painter.x(begin), x1 = painter.x(end), y = lanes.yOf(at) - view.scroll + AXIS_HEIGHT;
  const isOpen = lanes.ranks[model.rank[at]].isOpen;
  const half = isOpen ? ROW_HEIGHT / 2 : SUMMARY_HEIGHT / 2 - 2;
  const [left, right] = x1 - x0 < 8 ? [(x0 + x1) / 2 - 7, (x0 + x1) / 2 + 7] : [x0 - 2, x1 + 2];
  c.strokeStyle = colour;
  c.lineWidth = width;
  c.beginPath();
  c.roundRect(Math.max(left, -10), y - half, Math.min(right, view.width + 10) - Math.max(left, -10), 2 * half, 3);
  c.stroke();
}

// --- the strip above ------------------------------------------------------------------------------------------------------

function drawOverview(page) {
  const {overview, view, painter} = page;
  const c = overview.getContext('2d');
  const width = overview.width / view.ratio, height = overview.height / view.ratio;
  const [first, last] = page.whole;
  const x = time => GUTTER + (time - first) / (last - first) * (width - GUTTER);
  if (page.overviewImage === null) {
    const kept = document.createElement('canvas');
    [kept.width, kept.height] = [overview.width, overview.height];
    drawWhole(kept.getContext('2d'), page, x, width, height);
    page.overviewImage = kept;
  }
  c.setTransform(1, 0, 0, 1, 0, 0);
  c.drawImage(page.overviewImage, 0, 0);
  c.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  const left = Math.max(GUTTER, x(view.begin)), right = Math.min(width, x(view.end));
  c.fillStyle = painter.theme.surface;
  c.globalAlpha = 0.6;
  c.fillRect(GUTTER, 0, left - GUTTER, height);
  c.fillRect(right, 0, width - right, height);
  c.globalAlpha = 1;
  c.strokeStyle = painter.theme.accent;
  c.lineWidth = 1.5;
  c.strokeRect(left + 0.75, 0.75, Math.max(2, right - left - 1.5), height - 1.5);
}

// All but what is in view.
function drawWhole(c, page, x, width, height) {
  const {view, model, painter} = page;
  c.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  c.fillStyle = painter.theme.raised;
  c.fillRect(0, 0, width, height);
  c.font = FONT;
  c.textBaseline = 'middle';
  c.fillStyle = painter.theme.muted;
  c.fillText('All of it', 12, 16);
  c.fillStyle = painter.theme.faint;
  c.fillText('events per time', 12, 34);
  for (const phase of model.data.phases) {
    c.fillStyle = painter.theme[colourName(phase.name)];
    c.fillRect(x(phase.begin), 0, Math.max(1, x(phase.begin + phase.seconds) - x(phase.begin)), 4);
  }
  const bins = new Float64Array(Math.max(1, Math.ceil(width - GUTTER)));
  for (let at = 0; at < model.count; ++at) ++bins[Math.min(bins.length - 1, Math.max(0, Math.floor(x(model.time[at]) - GUTTER)))];
  const most = Math.log1p(bins.reduce((a, b) => Math.max(a, b), 1));
  c.fillStyle = painter.theme.handler;
  bins.forEach((count, i) => {
    const tall = count === 0 ? 0 : Math.max(1, Math.log1p(count) / most * (height - 14));
    c.fillRect(GUTTER + i, height - 3 - tall, 1, tall);
  });
  c.fillStyle = painter.theme.match;
  let before = -1;
  for (const time of view.matchTimes) {
    const at = Math.round(x(time));
    if (at !== before) c.fillRect(at - 1, height - 10, 2, 10);
    before = at;
  }
  c.fillStyle = painter.theme.fail;
  for (const failure of model.data.failures)
    if (failure.event >= 0) c.fillRect(Math.round(x(failure.at)) - 1, 0, 2, height);
}

// --- keys and the pointer -------------------------------------------------------------------------------------------------

function listen(page) {
  const byId = id => document.getElementById(id);
  const {overlay, overview, view, model} = page;
  new ResizeObserver(() => page.resize()).observe(byId('chart'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    page.painter.setTheme();
    page.overviewImage = null;
    page.change();
  });

  byId('to_failure').onclick = () => page.showFailure();
  byId('fit').onclick = () => page.fit();
  byId('zoom_in').onclick = () => page.zoom(0.5);
  byId('zoom_out').onclick = () => page.zoom(2);
  byId('expand').onclick = () => page.toggleAll();
  byId('help_button').onclick = () => byId('help').showModal();
  byId('previous').onclick = () => page.goToMatch(-1);
  byId('next').onclick = () => page.goToMatch(1);
  page.nameExpand();

  const input = byId('search');
  let timer = 0;
  input.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(() => page.search(input.value), model.count > 200000 ? 200 : 0);
  };
  input.onkeydown = event => {
    if (event.key === 'Enter') {
      clearTimeout(timer);
      const isNew = input.value.trim() !== page.query;
      if (isNew) page.search(input.value);
      const isShown = page.match >= 0 && page.selected === view.matches[page.match];
      page.goToMatch(event.shiftKey ? -1 : isNew || !isShown ? 0 : 1);
    } else if (event.key === 'Escape') {
      input.value = '';
      page.search('');
      overlay.focus();
    } else {
      return;
    }
    event.preventDefault();
  };

  const keys = {
    ArrowLeft: () => page.step(-1), ArrowRight: () => page.step(1), ArrowUp: () => page.stepLane(-1), ArrowDown: () => page.stepLane(1),
    PageUp: () => scroll(-0.8), PageDown: () => scroll(0.8), Enter: () => page.zoomToSelected(), Escape: () => page.select(-1),
    w: () => page.zoom(0.6), s: () => page.zoom(1 / 0.6), '+': () => page.zoom(0.6), '=': () => page.zoom(0.6), '-': () => page.zoom(1 / 0.6),
    a: () => page.pan(-0.2), d: () => page.pan(0.2), 0: () => page.fit(), f: () => page.showFailure(), e: () => page.toggleAll(),
    o: () => page.selected >= 0 && page.toggle(model.rank[page.selected]),
    c: () => follow(model.cause), m: () => follow(model.other), v: () => page.selected >= 0 && go(model.effects(page.selected)[0]),
    n: () => page.goToMatch(1), N: () => page.goToMatch(-1), '/': () => input.select(), '?': () => byId('help').showModal(),
  };
  const scroll = share => {
    view.scroll += share * (view.height - AXIS_HEIGHT);
    page.change();
  };
  const go = at => at !== undefined && at >= 0 && page.select(at, true);
  const follow = column => page.selected >= 0 && go(column[page.selected]);
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId('help').open || !Object.hasOwn(keys, event.key)) return;
    // Buttons and texts have their own use for some keys.
    const isElsewhere = event.target.closest('input, button, .quote') !== null;
    if (event.target === input || (isElsewhere && ['Enter', ' ', 'ArrowUp', 'ArrowDown', 'PageUp', 'PageDown'].includes(event.key))) return;
    keys[event.key]();
    event.preventDefault();
  });

  overlay.addEventListener('wheel', event => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const [dx, dy] = event.shiftKey ? [event.deltaY + event.deltaX, 0] : [event.deltaX, event.deltaY];
    const fitsInHeight = page.lanes.height <= view.height - AXIS_HEIGHT;
    if (event.ctrlKey || event.metaKey || (fitsInHeight && !event.shiftKey && Math.abs(dy) > Math.abs(dx)))
      return page.zoom(Math.exp(Math.max(-1, Math.min(1, dy * lines / 300))), page.painter.timeAt(Math.max(GUTTER, event.offsetX)));
    view.scroll += dy * lines;
    page.pan(dx * lines / (view.width - GUTTER));
  }, {passive: false});

  let drag = null;
  overlay.addEventListener('pointerdown', event => {
    if (event.button !== 0) return;
    overlay.setPointerCapture(event.pointerId);
    drag = {x: event.offsetX, y: event.offsetY, begin: view.begin, end: view.end, scroll: view.scroll, isMark: event.shiftKey, isMoved: false};
  });
  overlay.addEventListener('pointermove', event => {
    const {offsetX: x, offsetY: y} = event;
    if (drag === null) return hover(page, x, y);
    if (!drag.isMoved && Math.hypot(x - drag.x, y - drag.y) < 4) return undefined;
    drag.isMoved = true;
    byId('tip').hidden = true;
    if (drag.isMark) {
      page.mark = [drag.x, x];
      return page.refresh();
    }
    overlay.classList.add('dragging');
    const shift = (drag.x - x) / page.painter.scale;
    view.scroll = drag.scroll + drag.y - y;
    return page.setTimes(drag.begin + shift, drag.end + shift);
  });
  const drop = event => {
    if (drag === null) return;
    const {x, y, isMark, isMoved} = drag;
    drag = null;
    overlay.classList.remove('dragging');
    if (isMark && isMoved) {
      page.mark = null;
      const times = [x, event.offsetX].map(it => page.painter.timeAt(it)).sort((a, b) => a - b);
      page.setTimes(...times);
    } else if (!isMoved && event.type === 'pointerup') {
      const place = x < GUTTER && y > AXIS_HEIGHT ? page.lanes.rankAt(y - AXIS_HEIGHT + view.scroll) : -1;
      if (place >= 0) page.toggle(place);
      else page.select(eventAt(page, x, y));
    }
  };
  overlay.addEventListener('pointerup', drop);
  overlay.addEventListener('pointercancel', drop);
  overlay.addEventListener('dblclick', () => page.zoomToSelected());
  overlay.addEventListener('pointerleave', () => hover(page, -1, -1));

  const jump = event => {
    if (event.buttons !== 1) return;
    const [first, last] = page.whole;
    const width = overview.getBoundingClientRect().width;
    const time = first + (event.offsetX - GUTTER) / (width - GUTTER) * (last - first);
    const half = (view.end - view.begin) / 2;
    page.setTimes(time - half, time + half);
  };
  overview.addEventListener('pointerdown', event => {
    overview.setPointerCapture(event.pointerId);
    jump(event);
  });
  overview.addEventListener('pointermove', jump);
}

function hover(page, x, y) {
  const {model, panel, overlay, view} = page;
  const at = x < 0 ? -1 : eventAt(page, x, y);
  const tip = document.getElementById('tip');
  overlay.classList.toggle('over', at >= 0 || (x >= 0 && x < GUTTER && y > AXIS_HEIGHT));
  tip.hidden = at < 0;
  if (at >= 0) {
    const took = model.begin[at] < model.time[at] ? `, took ${durationText(model.time[at] - model.begin[at])}` : '';
    const text = model.text[at] !== 0 ? ': ' + model.texts[model.text[at]].slice(0, 160) : '';
    tip.replaceChildren(element('b', {}, model.describe(at) + text), element('span', {}, `${panel.rankName(at)}, ${durationText(model.time[at])}${took}`));
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, view.width - box.width - 6)) + 'px';
    tip.style.top = (y + 20 + box.height > view.height ? y - box.height - 12 : y + 18) + 'px';
  }
  if (at === page.hovered) return;
  page.hovered = at;
  page.refresh();
}
