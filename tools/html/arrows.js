'use strict';
// Messages as arrows in the order of their sending, in blocks that know how far their arrows go.

const ARROWS_A_BLOCK = 256;
const ARROWS_DRAWN = 2500, ARROWS_SEEN = 30000, LOCAL_ARROWS_DRAWN = 1500;

class Arrows {
  constructor(model, wanted) {
    const heads = [];
    for (let at = 0; at < model.count; ++at)
      if (model.kind[at] === model.handled && model.other[at] >= 0 && wanted(model.other[at], at)) heads.push(at);
    heads.sort((a, b) => model.time[model.other[a]] - model.time[model.other[b]]);
    this.model = model;
    this.heads = Int32Array.from(heads);
    this.blocks = [];
    for (let from = 0; from < heads.length; from += ARROWS_A_BLOCK) {
      const to = Math.min(from + ARROWS_A_BLOCK, heads.length);
      let begin = Infinity, end = -Infinity;
      for (let i = from; i < to; ++i) {
        begin = Math.min(begin, model.time[model.other[heads[i]]], model.begin[heads[i]]);
        end = Math.max(end, model.time[model.other[heads[i]]], model.begin[heads[i]]);
      }
      this.blocks.push({from, to, begin, end});
    }
  }
  // Calls `draw` with the heads of those that may be visible, at most `most` of them, evenly chosen; returns how many there are.
  visible(begin, end, most, draw) {
    const blocks = this.blocks.filter(block => block.begin <= end && block.end >= begin);
    const count = blocks.reduce((sum, block) => sum + block.to - block.from, 0);
    const stride = Math.max(1, Math.ceil(count / most));
    let next = 0;
    for (const block of blocks) {
      for (; next < block.to - block.from; next += stride) draw(this.heads[block.from + next]);
      next -= block.to - block.from;
    }
    return count;
  }
}

// What is drawn of them: those that fall onto each other once, and of very many some.
class ArrowPainter {
  constructor(painter) {
    const {model} = painter;
    this.painter = painter;
    this.context = painter.context;
    this.remote = new Arrows(model, (sent, handled) => model.rank[sent] !== model.rank[handled]);
    this.local = new Arrows(model, (sent, handled) => model.rank[sent] === model.rank[handled]);
    this.lost = [];
    for (let at = 0; at < model.count; ++at)
      if (model.flags[at] & LOST) this.lost.push(at);
    this.drawn = [];
    this.note = '';
  }

  // Of those in view at most so many, evenly chosen; and how many there are.
  collect(arrows, most, wanted) {
    const {view, model, lanes} = this.painter, {painter} = this;
    const seen = new Set(), found = [];
    const top = view.scroll - 20, bottom = view.scroll + view.height;
    const count = arrows.visible(view.begin, view.end, ARROWS_SEEN, head => {
      const tail = model.other[head];
      if (!wanted(tail)) return;
      const y0 = lanes.yOf(tail), y1 = lanes.yOf(head);
      if (Math.max(y0, y1) < top || Math.min(y0, y1) > bottom) return;
      const x0 = painter.x(model.time[tail]), x1 = painter.x(model.begin[head]);
      if (Math.max(x0, x1) < GUTTER || Math.min(x0, x1) > view.width) return;
      const key = `${Math.round(x0 / 3)} ${Math.round(x1 / 3)} ${y0} ${y1}`;
      if (seen.has(key)) return;
      seen.add(key);
      found.push({head, x0, y0: y0 - view.scroll + AXIS_HEIGHT, x1, y1: y1 - view.scroll + AXIS_HEIGHT});
    });
    const stride = Math.ceil(found.length / most);
    return {count, arrows: stride <= 1 ? found : found.filter((_, i) => i % stride === 0)};
  }

  draw() {
    const {painter, context: c} = this;
    const {theme, model, lanes} = painter;
    const {count, arrows} = this.collect(this.remote, ARROWS_DRAWN, () => true);
    const remote = arrows.length;
    const isOpen = tail => lanes.ranks[model.rank[tail]].isOpen;
    this.drawn = lanes.open.size === 0 ? arrows : arrows.concat(this.collect(this.local, LOCAL_ARROWS_DRAWN, isOpen).arrows);
    const crowd = Math.min(1, 200 / Math.max(1, remote));
    c.strokeStyle = c.fillStyle = theme.arrow;
    this.drawn.forEach((arrow, i) => {
      c.globalAlpha = i < remote ? 0.06 + 0.72 * crowd : 0.4;
      c.lineWidth = i < remote ? 1 : 0.75;
      this.arrow(arrow, crowd > 0.3 && i < remote);
    });
    c.globalAlpha = 1;
    const number = value => value.toLocaleString('en');
    this.note = count > ARROWS_SEEN ? `arrows stand for ${number(remote)} of ${number(count)} messages: zoom in for more` : '';
    c.strokeStyle = c.fillStyle = theme.fail;
    for (const at of this.lost) this.lostArrow(at);
  }

  arrow({x0, y0, x1, y1}, hasHead) {
    const c = this.context;
    const bend = Math.min(60, Math.max(6, Math.abs(x1 - x0) / 2));
    c.beginPath();
    c.moveTo(x0, y0);
    c.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    c.stroke();
    if (!hasHead) return;
    c.beginPath();
    c.moveTo(x1 + 1, y1);
    c.lineTo(x1 - 6, y1 - 3);
    c.lineTo(x1 - 6, y1 + 3);
    c.fill();
  }

  // It never arrived.
  lostArrow(at) {
    const {painter, context: c} = this;
    const {view, model, lanes} = painter;
    const x = painter.x(model.time[at]);
    if (x < GUTTER - 40 || x > view.width) return;
    const place = model.rankPlaces.get(model.peer[at]);
    const y0 = lanes.yOf(at), y1 = place === undefined ? y0 + 30 : lanes.ranks[place].top + SUMMARY_HEIGHT / 2;
    const shift = AXIS_HEIGHT - view.scroll, end = y0 + (y1 - y0) * 0.7;
    c.setLineDash([4, 3]);
    c.lineWidth = 1.2;
    c.beginPath();
    c.moveTo(x, y0 + shift);
    c.lineTo(x + 14, end + shift);
    c.stroke();
    c.setLineDash([]);
    c.beginPath();
    for (const side of [-1, 1]) {
      c.moveTo(x + 11, end + shift - 3 * side);
      c.lineTo(x + 17, end + shift + 3 * side);
    }
    c.stroke();
  }
}
