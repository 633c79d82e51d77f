// Brings an exported recording to life: the app's own scripts, each in the place of its component.
// A name behind a dollar sign stands for the text of a script; ui/html_export.py fills it in.
const scripts = {
  numbers: (element, props, watch) => {
    $numbers;
  },
  tokenStream: (element, props, watch, server) => {
    $token_stream;
  },
  player: (element, props, watch) => {
    $player;
  },
  verdict: (element, props, watch) => {
    $verdict;
  },
};
const data = JSON.parse(document.getElementById("recording").textContent);
const night = matchMedia("(prefers-color-scheme: dark)");
const paint = () => document.documentElement.classList.toggle("dark", night.matches);
paint();
night.addEventListener("change", paint);

const forget = () => {};
const nothing = { resend: async () => null };
for (const [id, script, value] of data) {
  const element = document.getElementById(id);
  element.hidden = value === null;
  if (value !== null) scripts[script](element, { value }, forget, nothing);
}
