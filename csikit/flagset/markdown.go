package flagset

import (
	"flag"
	"fmt"
	"strings"
)

// Markdown renders the flags of fs as a table, sorted by name. The components
// generate docs/flags.md from it, and a test compares the file with the flags.
func Markdown(fs *flag.FlagSet) string {
	var b strings.Builder
	b.WriteString("| Flag | Value | Default | Meaning |\n|---|---|---|---|\n")
	fs.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if value == "" {
			value = "bool"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s | %s |\n", f.Name, cell(value), code(f.DefValue), cell(usage))
	})
	return b.String()
}

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + cell(text) + "`"
}
