// Shows one run's tokens. `props.value` is the JSON that ui/token_stream.py describes.
// Model text only ever becomes textContent.
const SOURCES = {
  f: { name: "first", long: "first token, from the prefill" },
  d: { name: "draft", long: "drafted by the head, accepted by the target" },
  t: { name: "target", long: "produced by the target" },
  u: { name: "uncertain", long: "source uncertain: a merged chunk hides its place" },
};
const BOTTOM_SLACK = 24;

const find = (part) => element.querySelector(`[data-part="${part}"]`);
const view = find("tokens");
const detail = find("detail");
const legend = find("legend");
const ghostSwitch = find("ghosts");

let run = null;
let rows = [];
let spans = [];
let block = null;
let ghosts = new Map();
let think = [null, null];
let active = -1;
let pinned = false;
let finished = false;
let asking = false;
let stats = "";
let moment = null; // seconds since the request at which a playback shows the run; null: all of it
let visible = 0; // tokens shown at that moment

function reset(id) {
  run = id;
  rows = [];
  spans = [];
  ghosts = new Map();
  think = [null, null];
  active = -1;
  pinned = false;
  finished = false;
  asking = false;
  moment = null;
  view.replaceChildren();
  block = null;
  showDetail(-1);
}

function inThought(index) {
  return think[0] !== null && index >= think[0] && (think[1] === null || index < think[1]);
}

function className(index) {
  return `token ${SOURCES[rows[index][1]].name}${inThought(index) ? " thought" : ""}`;
}

function append(row) {
  const index = rows.push(row) - 1;
  const span = document.createElement("span");
  span.className = className(index);
  span.dataset.index = index;
  span.textContent = row[0];
  // Paragraphs of their own keep the cost of a layout to the last one.
  if (block === null || rows[index - 1]?.[0].endsWith("\n")) {
    block = document.createElement("div");
    block.className = "paragraph";
    view.append(block);
  }
  block.append(span);
  spans.push(span);
}

function correct(index, row) {
  const old = rows[index];
  rows[index] = row;
  if (old[0] !== row[0]) spans[index].textContent = row[0];
  if (old[1] !== row[1]) spans[index].className = className(index);
}

function markThought(range) {
  if (range[0] === think[0] && range[1] === think[1]) return;
  think = range;
  spans.forEach((span, index) => {
    span.className = className(index);
  });
}

function drawGhosts() {
  view.querySelectorAll(".ghost").forEach((ghost) => ghost.remove());
  if (!ghostSwitch.checked) return;
  const ends = new Map();
  rows.forEach((row, index) => {
    if (row[2] !== null) ends.set(row[2], index);
  });
  for (const [step, proposed] of ghosts) {
    const end = ends.get(step);
    if (end === undefined) continue;
    for (const [id, text] of rejected(step, proposed)) {
      const ghost = document.createElement("s");
      ghost.className = spans[end].classList.contains("later") ? "ghost later" : "ghost";
      ghost.setAttribute("aria-hidden", "true");
      ghost.title = `drafted and rejected · step ${step} · id ${id}`;
      ghost.textContent = text ?? `[${id}]`;
      spans[end].before(ghost);
    }
  }
}

function rejected(step, proposed) {
  const kept = proposed.accepted;
  return proposed.ids.slice(kept).map((id, offset) => [id, proposed.texts[kept + offset]]);
}

function labelOf(index) {
  const [, code, step, place, id, seconds] = rows[index];
  const parts = [SOURCES[code].long];
  if (step !== null) parts.push(step === 0 ? "prefill" : `verify step ${step}`);
  if (place !== null && step > 0) parts.push(`place ${place + 1} of ${stepSize(index)}`);
  parts.push(`id ${id}`, `${seconds.toFixed(3)} s`);
  return parts.join(" · ");
}

function stepSize(index) {
  const step = rows[index][2];
  let first = index;
  let last = index;
  while (first > 0 && rows[first - 1][2] === step) first -= 1;
  while (last + 1 < rows.length && rows[last + 1][2] === step) last += 1;
  return last - first + 1;
}

function showDetail(index) {
  view.querySelectorAll(".same-step").forEach((span) => span.classList.remove("same-step"));
  detail.replaceChildren();
  if (index < 0 || index >= rows.length) {
    detail.textContent = rows.length ? "Point at a token, or press Tab and the arrow keys." : "";
    return;
  }
  const text = document.createElement("b");
  text.textContent = JSON.stringify(rows[index][0]);
  detail.append(text, ` ${labelOf(index)}`);
  const step = rows[index][2];
  if (step !== null && step > 0) {
    for (let at = index; at >= 0 && rows[at][2] === step; at -= 1) spans[at].classList.add("same-step");
    for (let at = index; at < rows.length && rows[at][2] === step; at += 1) spans[at].classList.add("same-step");
    const proposed = ghosts.get(step);
    if (proposed) detail.append(proposal(step, proposed));
  }
}

function proposal(step, proposed) {
  const line = document.createElement("span");
  line.className = "proposal";
  line.append(" · the draft proposed ");
  proposed.ids.forEach((id, place) => {
    const word = document.createElement(place < proposed.accepted ? "ins" : "s");
    word.textContent = proposed.texts[place] ?? `[${id}]`;
    line.append(word, " ");
  });
  return line;
}

function activate(index) {
  if (active >= 0 && spans[active]) {
    spans[active].removeAttribute("tabindex");
    spans[active].removeAttribute("role");
    spans[active].removeAttribute("aria-label");
  }
  active = index;
  const span = spans[index];
  if (!span) return;
  span.tabIndex = 0;
  span.setAttribute("role", "img");
  span.setAttribute("aria-label", `${rows[index][0]}: ${labelOf(index)}`);
}

function focusOn(index) {
  activate(index);
  spans[index].focus({ preventScroll: true });
  const box = spans[index].getBoundingClientRect();
  const frame = view.getBoundingClientRect();
  if (box.top < frame.top) view.scrollTop -= frame.top - box.top + BOTTOM_SLACK;
  if (box.bottom > frame.bottom) view.scrollTop += box.bottom - frame.bottom + BOTTOM_SLACK;
}

function sameColumn(index, direction) {
  const here = spans[index].getBoundingClientRect();
  let best = index;
  for (let at = index + direction; at >= 0 && at < spans.length; at += direction) {
    const box = spans[at].getBoundingClientRect();
    const below = direction * (box.top - here.top) > here.height / 2;
    if (!below) continue;
    if (best !== index && Math.abs(box.top - spans[best].getBoundingClientRect().top) > here.height / 2) break;
    const nearer = Math.abs(box.left - here.left) < Math.abs(spans[best].getBoundingClientRect().left - here.left);
    if (best === index || nearer) best = at;
  }
  return best;
}

view.addEventListener("keydown", (event) => {
  if (!rows.length || event.altKey || event.ctrlKey || event.metaKey) return;
  const at = Math.max(active, 0);
  const last = rows.length - 1;
  const targets = {
    ArrowRight: () => Math.min(at + 1, last),
    ArrowLeft: () => Math.max(at - 1, 0),
    ArrowDown: () => sameColumn(at, 1),
    ArrowUp: () => sameColumn(at, -1),
    Home: () => 0,
    End: () => last,
  };
  if (!targets[event.key]) return;
  event.preventDefault();
  focusOn(targets[event.key]());
});
view.addEventListener("focusin", (event) => {
  const index = Number(event.target.dataset?.index ?? -1);
  if (index < 0) return;
  pinned = true;
  if (index !== active) activate(index);
  showDetail(index);
});
view.addEventListener("focusout", () => {
  pinned = false;
});
view.addEventListener("mouseover", (event) => {
  const index = event.target.dataset?.index;
  if (index !== undefined && !pinned) showDetail(Number(index));
});
view.addEventListener("mousedown", (event) => {
  const index = event.target.dataset?.index;
  if (index !== undefined) activate(Number(index));
});
ghostSwitch.addEventListener("change", drawGhosts);
find("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(rows.map((row) => row[0]).join(""));
  find("copy").textContent = "Copied";
  setTimeout(() => {
    find("copy").textContent = "Copy";
  }, 1500);
});

function drawLegend(counts, badge) {
  for (const code of "dtfu") {
    const name = SOURCES[code].name;
    const entry = legend.querySelector(`[data-source="${name}"]`);
    const count = counts[name] ?? 0;
    entry.querySelector("b").textContent = count;
    entry.hidden = count === 0 && name !== "target";
  }
  const mark = find("exactness");
  mark.textContent = badge.text;
  mark.title = badge.tip;
  mark.dataset.state = badge.state;
}

// How many tokens had arrived at `seconds`.
function countArrived(seconds) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle][5] <= seconds) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Hides a token of a later moment, and what was drafted ahead of it.
function hide(span, later) {
  span.classList.toggle("later", later);
  for (let ghost = span.previousElementSibling; ghost?.classList.contains("ghost"); ghost = ghost.previousElementSibling) {
    ghost.classList.toggle("later", later);
  }
}

function showMoment(seconds) {
  const before = moment === null ? rows.length : visible;
  moment = seconds;
  visible = seconds === null ? rows.length : countArrived(seconds);
  for (let at = Math.min(before, visible); at < Math.max(before, visible); at += 1) {
    hide(spans[at], at >= visible);
  }
  element.dataset.visible = visible;
  if (seconds === null) {
    find("stats").textContent = stats;
    return;
  }
  const over = visible === rows.length && rows.length > 0;
  const time = over ? `finished at ${rows[rows.length - 1][5].toFixed(2)} s` : `${seconds.toFixed(1)} s`;
  find("stats").textContent = `${visible} of ${rows.length} tokens · ${time}`;
  if (visible === 0) view.scrollTop = 0;
  else if (visible !== before) scrollTo(spans[visible - 1]);
}

function scrollTo(span) {
  const box = span.getBoundingClientRect();
  const frame = view.getBoundingClientRect();
  if (box.bottom > frame.bottom - BOTTOM_SLACK) view.scrollTop += box.bottom - frame.bottom + BOTTOM_SLACK;
  if (box.top < frame.top) view.scrollTop -= frame.top - box.top + BOTTOM_SLACK;
}

element.querySelector(".token-stream").addEventListener("lens-moment", (event) => showMoment(event.detail));

async function askAgain() {
  if (asking) return;
  asking = true;
  const wanted = run;
  const whole = await server.resend(wanted);
  asking = false;
  if (whole && run === wanted) draw(JSON.parse(whole));
}

function draw(update) {
  if (update.run !== run) reset(update.run);
  if (finished && !update.done) return;
  if (update.first > rows.length) {
    askAgain();
    return;
  }
  const atBottom = view.scrollTop + view.clientHeight >= view.scrollHeight - BOTTOM_SLACK;
  update.tokens.forEach((row, offset) => {
    const index = update.first + offset;
    if (index < rows.length) correct(index, row);
    else append(row);
  });
  while (update.done && rows.length > update.total) {
    rows.pop();
    spans.pop().remove();
  }
  for (const [step, accepted, ids, texts] of update.proposed) ghosts.set(step, { accepted, ids, texts });
  markThought(update.thought);
  finished = update.done;
  find("title").textContent = update.title;
  stats = update.stats;
  if (moment === null) find("stats").textContent = stats;
  drawLegend(update.counts, update.badge);
  find("ghost-switch").hidden = ghosts.size === 0;
  if (ghostSwitch.checked) drawGhosts();
  if (active < 0 && spans.length) activate(0);
  if (!pinned && finished) showDetail(-1);
  view.setAttribute("aria-busy", String(!finished));
  element.dataset.run = run;
  element.dataset.total = rows.length;
  element.dataset.done = String(finished);
  if (atBottom) view.scrollTop = view.scrollHeight;
}

function read() {
  if (props.value) draw(JSON.parse(props.value));
}
watch("value", read);
read();
