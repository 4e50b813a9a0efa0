'use strict';
// Messages as arrows: which of them are drawn, and where they go.

const ARROWS_DRAWN = 2500, ARROWS_SEEN = 30000, LOCAL_ARROWS_DRAWN = 1500;

class Arrows {
  constructor(painter) {
    const {model} = painter;
    this.painter = painter;
    [this.remote, this.local, this.lost] = [[], [], []];  // of arrows, the events that handled the messages; of lost messages, their sending
    for (let at = 0; at < model.count; ++at) {
      const sent = model.other[at];
      if (model.kind[at] === HANDLED && sent >= 0) (model.rank[sent] === model.rank[at] ? this.local : this.remote).push(at);
      if (model.flags[at] & LOST) this.lost.push(at);
    }
    this.drawn = [];
    this.note = '';
  }

  // Of those in view at most so many, evenly chosen, and those that fall onto each other once; and how many there are.
  collect(heads, most, isWanted) {
    const {painter} = this, {view, model, lanes} = painter;
    const timely = heads.filter(head => {
      const sent = model.time[model.other[head]], handled = model.begin[head];
      return Math.min(sent, handled) <= painter.to && Math.max(sent, handled) >= painter.from;
    });
    const step = Math.max(1, Math.ceil(timely.length / ARROWS_SEEN));
    const top = view.scroll - 20, bottom = view.scroll + view.height;
    const found = new Map();
    for (let i = 0; i < timely.length; i += step) {
      const head = timely[i], tail = model.other[head];
      const y0 = lanes.yOf(tail), y1 = lanes.yOf(head);
      if (!isWanted(tail) || Math.max(y0, y1) < top || Math.min(y0, y1) > bottom) continue;
      const x0 = painter.x(model.time[tail]), x1 = painter.x(model.begin[head]);
      found.set(`${Math.round(x0 / 3)} ${Math.round(x1 / 3)} ${y0} ${y1}`, {head, x0, y0: painter.y(y0), x1, y1: painter.y(y1)});
    }
    const stride = Math.ceil(found.size / most);
    return {count: timely.length, arrows: [...found.values()].filter((_, i) => i % stride === 0)};
  }

  draw() {
    const {theme, model, lanes, context: c} = this.painter;
    const {count, arrows} = this.collect(this.remote, ARROWS_DRAWN, () => true);
    const isOpen = tail => lanes.ranks[model.rank[tail]].isOpen;
    this.drawn = lanes.open.size === 0 ? arrows : arrows.concat(this.collect(this.local, LOCAL_ARROWS_DRAWN, isOpen).arrows);
    const crowd = Math.min(1, 30 / Math.max(1, arrows.length));
    c.strokeStyle = c.fillStyle = theme.arrow;
    this.drawn.forEach((arrow, i) => {
      const isRemote = i < arrows.length;
      c.globalAlpha = isRemote ? 0.04 + 0.74 * crowd : 0.4;
      c.lineWidth = isRemote ? 1 : 0.75;
      this.line(arrow);
      if (isRemote && crowd > 0.15) this.head(arrow);
    });
    c.globalAlpha = 1;
    const number = value => value.toLocaleString('en');
    this.note = count > ARROWS_SEEN ? `arrows stand for ${number(arrows.length)} of ${number(count)} messages: zoom in for more` : '';
    c.strokeStyle = c.fillStyle = theme.fail;
    for (const at of this.lost) this.lostArrow(at);
  }

  line({x0, y0, x1, y1}) {
    const {context: c} = this.painter;
    c.beginPath();
    c.moveTo(x0, y0);
    c.lineTo(x1, y1);
    c.stroke();
  }
  head({x0, y0, x1, y1}) {
    const {context: c} = this.painter;
    const length = Math.hypot(x1 - x0, y1 - y0) || 1, dx = (x1 - x0) / length, dy = (y1 - y0) / length;
    c.beginPath();
    c.moveTo(x1, y1);
    for (const side of [-3, 3]) c.lineTo(x1 - 7 * dx + side * dy, y1 - 7 * dy - side * dx);
    c.fill();
  }
  // It ends in a cross on its way.
  lostArrow(at) {
    const {context: c, model, lanes} = this.painter;
    const x = this.painter.x(model.time[at]), place = model.rankPlaces.get(model.peer[at]);
    const from = lanes.yOf(at), to = place === undefined ? from + 30 : lanes.ranks[place].top + lanes.ranks[place].line.height / 2;
    const end = this.painter.y(from + (to - from) * 0.7);
    c.lineWidth = 1.2;
    c.setLineDash([4, 3]);
    this.line({x0: x, y0: this.painter.y(from), x1: x + 14, y1: end});
    c.setLineDash([]);
    c.fillText('✕', x + 10, end);
  }

  // The message whose arrow passes there: its handling, -1 if there is none, and how far off it is.
  at(x, y) {
    let head = -1, least = 5;
    for (const {head: one, x0, y0, x1, y1} of this.drawn) {
      const [dx, dy] = [x1 - x0, y1 - y0];
      const share = Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy || 1)));
      const distance = Math.hypot(x0 + share * dx - x, y0 + share * dy - y);
      if (distance < least) [head, least] = [one, distance];
    }
    return {head, distance: least};
  }
}
