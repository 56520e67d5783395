// Searches the site that `nox -s docs` has built as its page does, for what users type and paste.
// Usage: node search_test.cjs FOLDER; each wording must find its place among the first two results.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const WORDINGS = [
  // [wording, page or page#section]
  ["nan loss after a few hundred steps", "troubleshooting#the-loss-is-nan"],
  ["loss turns nan", "troubleshooting#the-loss-is-nan"],
  ["loss is inf", "troubleshooting#the-loss-is-nan"],
  ["weights are nan but every step is skipped", "troubleshooting#the-weights-are-nan-though-steps-are-skipped"],
  ["adversarial weight perturbation", "troubleshooting#the-weights-are-nan-though-steps-are-skipped"],
  ["replace nan gradients with zeros", "troubleshooting#the-weights-are-nan-though-steps-are-skipped"],
  ["awp", "troubleshooting#the-weights-are-nan-though-steps-are-skipped"],
  ["fgm", "troubleshooting#the-weights-are-nan-though-steps-are-skipped"],
  ["weights not updating", "troubleshooting#the-weights-do-not-move"],
  ["model does not learn", "troubleshooting#the-weights-do-not-move"],
  ["lower accuracy after upgrading tensorflow", "troubleshooting#the-accuracy-differs-after-migrating"],
  ["accuracy drop", "troubleshooting#the-accuracy-differs-after-migrating"],
  ["do i need loss scaling if gradients are float32", "troubleshooting#gradients-print-as-float32-why-scale-the-loss"],
  ["do i need loss scaling", "troubleshooting#gradients-print-as-float32-why-scale-the-loss"],
  ["loss scale has no effect", "troubleshooting#keras-trains-in-float32-and-the-loss-scale-does-nothing"],
  ["float16 not used", "troubleshooting#keras-trains-in-float32-and-the-loss-scale-does-nothing"],
  ["float16 slow on cpu", "troubleshooting#float16-is-slow-on-a-cpu"],
  ["mixed precision slower than float32", "troubleshooting#float16-is-slow-on-a-cpu"],
  ["loss scale drops at beginning", "troubleshooting#the-loss-scale-falls-at-the-start-and-global-step-has-not-been-increased"],
  ["global step has not been increased", "troubleshooting#the-loss-scale-falls-at-the-start-and-global-step-has-not-been-increased"],
  ["loss scale keeps decreasing", "troubleshooting#the-loss-scale-halves-every-step"],
  ["loss scale keeps halving", "troubleshooting#the-loss-scale-halves-every-step"],
  ["loss scale 1 forever", "troubleshooting#the-loss-scale-stays-at-1"],
  ["loss scale does not recover", "troubleshooting#the-loss-scale-stays-at-1"],
  ["loss scale explodes", "troubleshooting#the-loss-scale-grows-without-end"],
  ["loss scale 1.7e38", "troubleshooting#the-loss-scale-grows-without-end"],
  ["loss scale too large", "troubleshooting#the-loss-scale-grows-without-end"],
  ["loss scale is inf", "troubleshooting#the-loss-scale-grows-without-end"],
  ["reset loss scale during training", "troubleshooting#to-set-the-loss-scale-by-hand"],
  ["change loss scale", "troubleshooting#to-set-the-loss-scale-by-hand"],
  ["clip_by_global_norm with loss scaling", "troubleshooting#where-to-clip-gradients"],
  ["clipnorm", "troubleshooting#where-to-clip-gradients"],
  ["wgan-gp", "troubleshooting#a-gradient-penalty"],
  ["gradient penalty nested gradienttape", "troubleshooting#a-gradient-penalty"],
  ["second derivative", "troubleshooting#a-gradient-penalty"],
  ["double backward", "troubleshooting#a-gradient-penalty"],
  ["nested tape", "troubleshooting#a-gradient-penalty"],
  ["multi gpu", "troubleshooting#several-gpus-multiple-gpus-several-machines"],
  ["micro-batch", "troubleshooting#gradient-accumulation"],
  ["large batch", "troubleshooting#gradient-accumulation"],
  ["how many steps were skipped", "troubleshooting#was-the-step-applied"],
  ["how often are steps skipped", "troubleshooting#was-the-step-applied"],
  ["resume training exactly", "troubleshooting#to-resume-a-run-or-load-a-checkpoint"],
  ["NotFoundError: Key cond_1/beta1_power not found in checkpoint", "troubleshooting#to-resume-a-run-or-load-a-checkpoint"],
  ["AttributeError: module 'tensorflow' has no attribute 'contrib'", "troubleshooting#a-name-is-gone-from-tensorflow"],
  ["ModuleNotFoundError: No module named 'tensorflow.contrib'", "troubleshooting#a-name-is-gone-from-tensorflow"],
  ["AttributeError: module 'tensorflow_core._api.v2.train.experimental' has no attribute 'DynamicLossScale'", "troubleshooting#a-name-is-gone-from-tensorflow"],
  ["ImportError: cannot import name 'experimental' from 'tensorflow.keras.mixed_precision' (/usr/lib/python3.11/site-packages/keras/api/_v2/keras/mixed_precision/__init__.py)", "troubleshooting#a-name-is-gone-from-tensorflow"],
  ["module 'tensorflow.keras.mixed_precision' has no attribute 'experimental'", "troubleshooting#a-name-is-gone-from-tensorflow"],
  ["AttributeError: 'LossScaleOptimizer' object has no attribute 'get_scaled_loss'", "troubleshooting#lossscaleoptimizer-has-other-methods-and-arguments"],
  ["LossScaleOptimizer no longer supports dynamic=False", "troubleshooting#lossscaleoptimizer-has-other-methods-and-arguments"],
  ["WARNING:tensorflow:LossScale of LossScaleOptimizer passed to compile (FixedLossScale(128.0)) is not the same as the dtype policy's loss scale", "troubleshooting#compile-says-to-pass-an-optimizer-that-is-not-wrapped"],
  ["unwrap optimizer", "troubleshooting#compile-says-to-pass-an-optimizer-that-is-not-wrapped"],
  ["ValueError: Unknown optimizer: tf_lossscale_compat>LossScaleOptimizerV2. Please ensure this object is passed to the `custom_objects` argument.", "troubleshooting#a-saved-model-does-not-load"],
  ["keras.optimizers.legacy is not supported in Keras 3", "troubleshooting#keras-3-has-no-such-layer-or-optimizer"],
  ["RuntimeError: Graph is finalized and cannot be modified.", "troubleshooting#graphs-and-replicas"],
  ["ValueError: DynamicLossScale.update must be called once for all replicas, but was called in a replica context", "troubleshooting#messages-of-this-package"],
  ["horovod", "clusters"],
  ["install", "install"],
  ["bfloat16", "keras"],
];

const folder = process.argv[2];
const read = (name) => fs.readFileSync(path.join(folder, name), "utf8");
const page = vm.createContext({
  DOCUMENTATION_OPTIONS: {},
  SPHINX_HIGHLIGHT_ENABLED: false,
  Documentation: {},
  document: { getElementById: () => null },
  _: (text) => text,
  _ready: () => {},
});
page.window = page;
for (const name of ["_static/searchtools.js", "_static/language_data.js", "searchindex.js"])
  vm.runInContext(read(name), page, { filename: name });

// The section in which an element of a page is: entries of the index have ids of their own.
const section = (docname, id) => {
  const html = read(`${docname}.html`);
  const before = html.slice(0, html.indexOf(`id="${id}"`) + id.length + 5);
  return [...before.matchAll(/<section id="([^"]+)"/g)].pop()?.[1];
};

let failures = 0;
for (const [wording, wanted] of WORDINGS) {
  page.wording = wording;
  const results = vm.runInContext("Search._performSearch(...Search._parseQuery(wording))", page);
  const places = [];
  for (const [docname, , anchor] of results.reverse()) {
    const place = anchor ? `${docname}#${section(docname, anchor.slice(1))}` : docname;
    if (!places.includes(place)) places.push(place);
  }
  const rank = 1 + places.findIndex((place) => place === wanted || place.startsWith(`${wanted}#`));
  if (rank === 1 || rank === 2) continue;
  failures += 1;
  console.error(`${wording}\n  is to find ${wanted}, and finds\n  ${places.slice(0, 5).join("\n  ")}`);
}
console.log(`${WORDINGS.length - failures} of ${WORDINGS.length} wordings find their place.`);
process.exit(failures ? 1 : 0);
