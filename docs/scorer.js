// Sphinx' own scores of search results, and what this site adds to them.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => {
    // Private names and measurements come last; headings in Troubleshooting are symptoms.
    if (/\._/.test(title) || page === "performance") return score - 100;
    return page === "troubleshooting" ? score + (anchor ? 10 : 1) : score;
  },
};
