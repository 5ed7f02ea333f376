// Keeps a job's page current: asks for its state about once a second, and goes on to the result when it is there.
(function () {
  "use strict";
  var place = document.getElementById("job");
  if (!place || place.dataset.final === "yes") return;
  var bar = document.getElementById("job-progress");
  var share = document.getElementById("job-share");
  var state = document.getElementById("job-state");
  var note = document.getElementById("job-note");
  var misses = 0;

  function ask() {
    fetch(place.dataset.state, { headers: { Accept: "application/json" } })
      .then(function (answer) {
        if (!answer.ok) throw new Error("status " + answer.status);
        return answer.json();
      })
      .then(function (job) {
        misses = 0;
        note.textContent = "";
        bar.value = job.progress;
        share.textContent = Math.round(100 * job.progress) + " %";
        if (state.textContent !== job.words) state.textContent = job.words;
        if (job.location) window.location.assign(job.location);
        else if (job.final) window.location.reload();
        else window.setTimeout(ask, 1000);
      })
      .catch(function (error) {
        misses += 1;
        note.textContent = "No answer from the service (" + error.message + "); trying again. The job itself goes on.";
        window.setTimeout(ask, Math.min(1000 * Math.pow(2, misses), 30000));
      });
  }
  window.setTimeout(ask, 500);
})();
