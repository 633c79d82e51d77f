// Photo finish: plays the two panels of a comparison from t = 0 at true pace. Needs playback.js in front of it.
// `props.value` is the JSON that ui/photo_finish.py describes.
const find = (part) => element.querySelector(`[data-part="${part}"]`);
const bar = find("bar");
const toggle = find("toggle");
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
let race = null;
let held = false; // the panels show a moment, not the whole

const clock = makeClock((seconds, playing) => {
  if (!race) return;
  const over = !playing && seconds >= race.seconds;
  bar.value = seconds;
  find("time").textContent = `${seconds.toFixed(1)} of ${race.seconds.toFixed(1)} s`;
  toggle.textContent = playing ? "Pause" : over || !held ? "Replay from t = 0" : "Go on";
  element.dataset.seconds = seconds;
  element.dataset.playing = String(playing);
  if (held) for (const panel of race.panels) showMoment(panel.id, over ? null : seconds);
  if (over) held = false;
});

// The panels get their last tokens by events of their own, perhaps after this component.
function whenComplete(wanted, act) {
  if (race !== wanted) return;
  const complete = wanted.panels.every(({ id, run }) => {
    const data = document.getElementById(id)?.querySelector("[data-run]")?.dataset;
    return data?.run === run && data.done === "true";
  });
  if (complete) act();
  else requestAnimationFrame(() => whenComplete(wanted, act));
}

function play() {
  held = true;
  clock.play();
}

toggle.addEventListener("click", () => (clock.playing ? clock.pause() : play()));
bar.addEventListener("input", () => {
  held = true;
  clock.seek(Number(bar.value));
});

function read() {
  const wanted = props.value ? JSON.parse(props.value) : null;
  if (wanted && race && wanted.name === race.name) return;
  race = null;
  held = false;
  clock.load(wanted ? wanted.seconds : 0);
  find("frame").hidden = !wanted;
  race = wanted;
  if (!wanted) return;
  bar.max = wanted.seconds;
  clock.load(wanted.seconds);
  if (wanted.autoplay && !CALM.matches) whenComplete(wanted, play);
}
watch("value", read);
read();
