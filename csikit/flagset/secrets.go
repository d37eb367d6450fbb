package flagset

import (
	"errors"
	"flag"
	"regexp"
	"strings"
)

// Secrets limits which secrets are read for calls to the driver. The zero value is the default: no limit.
type Secrets struct {
	// Namespaces are those that secrets are read from. Empty: all.
	Namespaces []string
}

// AddFlags registers --secret-namespaces.
func (s *Secrets) AddFlags(fs *flag.FlagSet) {
	fs.Var((*nameList)(&s.Namespaces), "secret-namespaces",
		"comma-separated `namespaces` that secrets for calls to the driver are read from; those of other namespaces are refused; empty: all")
}

// Validate reports what cannot be the name of a namespace.
func (s *Secrets) Validate() error {
	const longest = 63
	label := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	var errs []error
	for _, name := range s.Namespaces {
		if len(name) > longest || !label.MatchString(name) {
			errs = append(errs, invalid("secret-namespaces", name,
				"a namespace must be 1 to 63 lower-case letters, digits or '-', and begin and end with a letter or digit"))
		}
	}
	return errors.Join(errs...)
}

// nameList is the flag.Value behind --secret-namespaces.
type nameList []string

// String implements flag.Value.
func (l *nameList) String() string {
	if l == nil {
		return ""
	}
	return strings.Join(*l, ",")
}

// Set implements flag.Value. It replaces what was set before.
func (l *nameList) Set(text string) error {
	*l = nil
	for _, name := range strings.Split(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			*l = append(*l, name)
		}
	}
	return nil
}
