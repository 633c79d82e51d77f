// The clock that plays runs back, in front of the script of every component that plays: `makeClock(onTick)`.
// Time is that of the runs, in seconds since the request. `onTick(seconds, playing)` comes with every frame and change.
function makeClock(onTick) {
  let end = 0;
  let rate = 1;
  let seconds = 0;
  let base = null; // where the wall clock stood at second 0 of the playback; null while it rests
  let frame = 0;

  function now() {
    return base === null ? seconds : Math.min(end, ((performance.now() - base) / 1000) * rate);
  }

  function tick() {
    seconds = now();
    if (base !== null && seconds >= end) base = null;
    onTick(seconds, base !== null);
    frame = base === null ? 0 : requestAnimationFrame(tick);
  }

  function rebase() {
    if (base !== null) base = performance.now() - (seconds / rate) * 1000;
  }

  return {
    // Set the length in seconds, go back to the start and rest there.
    load(length) {
      cancelAnimationFrame(frame);
      end = length;
      seconds = 0;
      base = null;
      onTick(0, false);
    },
    // Play on, from the start where the end is reached.
    play() {
      if (base !== null) return;
      if (seconds >= end) seconds = 0;
      base = 0;
      rebase();
      tick();
    },
    pause() {
      if (base === null) return;
      cancelAnimationFrame(frame);
      seconds = now();
      base = null;
      onTick(seconds, false);
    },
    seek(to) {
      seconds = Math.max(0, Math.min(end, to));
      rebase();
      onTick(seconds, base !== null);
    },
    // How many seconds of the runs pass in one of the wall clock.
    setRate(to) {
      seconds = now();
      rate = to;
      rebase();
    },
    get seconds() {
      return now();
    },
    get playing() {
      return base !== null;
    },
  };
}

// Show the token view inside the element of this id as it was at `seconds`; all of it where that is null.
function showMoment(id, seconds) {
  document.getElementById(id)?.querySelector(".token-stream")?.dispatchEvent(new CustomEvent("lens-moment", { detail: seconds }));
}
