'use strict';
// What keys and the pointer do.

const NEAR = 7, ON = 2.5;  // pixels

// The event under the pointer: a span, a point or an arrow's message; -1: none.
function eventAt(page, x, y) {
  const {painter, lanes, model, view} = page;
  if (x < GUTTER || y < AXIS_HEIGHT) return -1;
  const down = y - AXIS_HEIGHT + view.scroll;
  const place = lanes.rankAt(down);
  const arrow = painter.arrows.at(x, y);
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
  if (within < rank.line.height) {
    if (!rank.isOpen) rank.lanes.forEach(lane => point(lane, true));
    if (best < 0) (within < rank.line.hooks ? rank.states.rows : rank.hooks).forEach(span);
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

// --- keys and the pointer -------------------------------------------------------------------------------------------------

function listen(page) {
  const byId = id => document.getElementById(id);
  const {overlay} = page;
  addEventListener('hashchange', () => page.followLink());
  new ResizeObserver(() => page.resize()).observe(byId('chart'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    page.painter.theme = readTheme();
    page.change();
  });

  byId('to_failure').onclick = () => page.showFailure();
  byId('fit').onclick = () => page.fit();
  byId('expand').onclick = () => page.toggleAll();
  byId('fold').onclick = () => page.toggleFolds();
  byId('help_button').onclick = () => byId('help').showModal();

  const input = byId('search');
  let timer = 0;
  input.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(() => page.search(input.value), page.model.count > 200000 ? 200 : 0);
  };
  input.onkeydown = event => {
    if (event.key === 'Enter') {
      clearTimeout(timer);
      const isNew = input.value.trim() !== page.query;
      if (isNew) page.search(input.value);
      const isShown = page.match >= 0 && page.selected === page.view.matches[page.match];
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
    g: () => page.toggleFolds(), '[': () => page.showNext(-1), ']': () => page.showNext(1),
    o: () => page.selected >= 0 && page.toggle(page.model.rank[page.selected]),
    c: () => follow('cause'), m: () => follow('other'), v: () => page.selected >= 0 && go(page.model.effects(page.selected)[0]),
    n: () => page.goToMatch(1), N: () => page.goToMatch(-1), '/': () => input.select(), '?': () => byId('help').showModal(),
  };
  const scroll = share => {
    page.view.scroll += share * (page.view.height - AXIS_HEIGHT);
    page.change();
  };
  const go = at => at !== undefined && at >= 0 && page.select(at, true);
  const follow = column => page.selected >= 0 && go(page.model[column][page.selected]);
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
    const {view} = page;
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
    const {view} = page;
    drag = {x: event.offsetX, y: event.offsetY, begin: view.begin, end: view.end, scroll: view.scroll, isMoved: false};
  });
  overlay.addEventListener('pointermove', event => {
    const {offsetX: x, offsetY: y} = event;
    if (drag === null) return hover(page, x, y);
    if (!drag.isMoved && Math.hypot(x - drag.x, y - drag.y) < 4) return undefined;
    drag.isMoved = true;
    byId('tip').hidden = true;
    overlay.classList.add('dragging');
    const shift = (drag.x - x) / page.painter.scale;
    page.view.scroll = drag.scroll + drag.y - y;
    return page.setTimes(drag.begin + shift, drag.end + shift);
  });
  const drop = event => {
    if (drag === null) return;
    const {x, y, isMoved} = drag;
    drag = null;
    overlay.classList.remove('dragging');
    if (isMoved || event.type !== 'pointerup') return;
    const place = x < GUTTER && y > AXIS_HEIGHT ? page.lanes.rankAt(y - AXIS_HEIGHT + page.view.scroll) : -1;
    if (place >= 0) page.toggle(place);
    else page.select(eventAt(page, x, y));
  };
  overlay.addEventListener('pointerup', drop);
  overlay.addEventListener('pointercancel', drop);
  overlay.addEventListener('dblclick', () => page.zoomToSelected());
  overlay.addEventListener('pointerleave', () => hover(page, -1, -1));
}

function hover(page, x, y) {
  const {model, panel, overlay, view} = page;
  const at = x < 0 ? -1 : eventAt(page, x, y);
  const tip = document.getElementById('tip');
  overlay.classList.toggle('over', at >= 0 || (x >= 0 && x < GUTTER && y > AXIS_HEIGHT));
  tip.hidden = at < 0;
  if (at < 0) return;
  const took = model.begin[at] < model.time[at] ? `, took ${durationText(model.time[at] - model.begin[at])}` : '';
  tip.textContent = `${model.describe(at)}\n${panel.rankName(at)}, ${durationText(model.time[at])}${took}`;
  tip.style.left = Math.min(x + 14, view.width - tip.offsetWidth - 6) + 'px';
  tip.style.top = (y + 20 + tip.offsetHeight > view.height ? y - tip.offsetHeight - 12 : y + 18) + 'px';
}
