// Loaded with the first formula.

export {render} from "katex";
