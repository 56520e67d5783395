// node tools/prose.cjs FOLDER FILE...: looks at the sentences of documents with the textlint installed in FOLDER.
const fs = require("fs");
const path = require("path");

const SENTENCE = 35; // Words, of which code is one.
const CELL = 15;
// Habits that made readers read twice, and what to write.
const HABITS = [
  [/\bfrom (\w+ )?\d[\d.]* on\b/i, '"TensorFlow 2.11 and later"'],
  [/\basked for\b|\bwas (ever )?asked\b/i, '"called", "read" or "passed"'],
  [/\bthe (older|newer|old|new) ones\b|\bthe (older|newer)(?=[.,;:)])/i, "the names of what is meant"],
  [/\bthat (2\.\d+|Keras \d) brought\b/i, '"new in TensorFlow 2.11"'],
  [/\b(is|are|was|were) there (already|as)\b|\bthat (is|are) there\b/i, '"installed" or "existing"'],
  [/\bgives? back\b/i, '"returns"'],
  [/\bone's own\b/i, '"your own"'],
  [/\bfor a moment\b|\bnothing more\.$/i, "a sentence with a verb"],
  [/^(Whether|What|Which|Who|How)\b(?! to\b)(?!.*\?$)/, "a subject and a verb first"],
];

// Returns the text of a node, with code as one word and a mark before the text of links.
function textOf(node) {
  if (node.type === "Code") return "`code`";
  if (node.type === "Str") return node.value;
  if (node.type === "Break") return " ";
  if (node.type === "Image" || node.type === "Html") return "";
  const text = (node.children || []).map(textOf).join("");
  return node.type === "Link" ? `\u2060${text}` : text;
}

const words = (text) => text.split(/\s+/).filter((word) => /\w/.test(word)).length;

const rule = ({ Syntax, RuleError, report }) => ({
  [Syntax.Paragraph](node) {
    for (const sentence of textOf(node).split(/(?<=[.!?]["')*]*)\s+(?=[^a-z])/)) {
      const count = words(sentence);
      const start = `"${sentence.slice(0, 50).replace(/\s+/g, " ")}…"`;
      if (count > SENTENCE) report(node, new RuleError(`${start}: ${count} words, at most ${SENTENCE}`));
      for (const [pattern, better] of HABITS) {
        const found = pattern.exec(sentence.trim());
        if (found) report(node, new RuleError(`${start}: "${found[0]}", write ${better}`));
      }
    }
  },
  TableCell(node) {
    const text = textOf(node);
    const count = words(text);
    if (count > CELL) report(node, new RuleError(`"${text.slice(0, 50)}…": a cell of ${count} words, at most ${CELL}`));
    for (const [pattern, better] of HABITS) {
      const found = pattern.exec(text);
      if (found) report(node, new RuleError(`cell "${text.slice(0, 50)}": "${found[0]}", write ${better}`));
    }
  },
});

async function main([folder, ...files]) {
  const from = (name) => require(path.resolve(folder, "node_modules", ...name.split("/")));
  const { TextlintKernel } = from("@textlint/kernel");
  const plugin = from("@textlint/textlint-plugin-markdown").default;
  const options = {
    ext: ".md",
    plugins: [{ pluginId: "markdown", plugin }],
    rules: [{ ruleId: "prose", rule }],
  };
  let count = 0;
  for (const file of files) {
    const text = fs.readFileSync(file, "utf8");
    const { messages } = await new TextlintKernel().lintText(text, { ...options, filePath: file });
    messages.forEach((each) => console.error(`${file}:${each.line}: ${each.message}`));
    count += messages.length;
  }
  process.exit(count ? 1 : 0);
}

main(process.argv.slice(2));
