package flagset

import (
	"errors"
	"flag"
	"fmt"
)

// Group is a set of flags that are registered and checked together.
type Group interface {
	// AddFlags registers the flags on fs. The values that the fields have at that
	// moment are the defaults.
	AddFlags(fs *flag.FlagSet)
	// Validate reports everything that is wrong with the values at once.
	Validate() error
}

// Warner is a Group that can report flags which were set although they are
// deprecated or without effect.
type Warner interface {
	// Warnings returns one sentence per such flag, in the order of registration.
	Warnings() []string
}

var (
	_ Group = (*CSI)(nil)
	_ Group = (*Kube)(nil)
	_ Group = (*LeaderElection)(nil)
	_ Group = (*HTTP)(nil)
	_ Group = (*Retry)(nil)
	_ Group = (*FeatureGates)(nil)
	_ Group = (*Secrets)(nil)

	_ Warner = (*HTTP)(nil)
	_ Warner = (*FeatureGates)(nil)
	_ Warner = (*Ignored)(nil)
)

// AddFlags registers the flags of all groups on fs.
func AddFlags(fs *flag.FlagSet, groups ...Group) {
	for _, g := range groups {
		g.AddFlags(fs)
	}
}

// Validate checks all groups and joins what they report.
func Validate(groups ...Group) error {
	errs := make([]error, 0, len(groups))
	for _, g := range groups {
		errs = append(errs, g.Validate())
	}
	return errors.Join(errs...)
}

// Warnings collects the warnings of all sources, for the caller to log.
func Warnings(sources ...Warner) []string {
	var all []string
	for _, s := range sources {
		all = append(all, s.Warnings()...)
	}
	return all
}

// Require returns an error that names the flag, the value that it has and the rule, unless the value keeps it.
func Require(keeps bool, flag string, value any, rule string) error {
	if keeps {
		return nil
	}
	return invalid(flag, value, rule)
}

// invalid names the flag, the value it has and the rule the value breaks.
func invalid(name string, value any, rule string) error {
	if s, ok := value.(string); ok {
		return fmt.Errorf("--%s=%q: %s", name, s, rule)
	}
	return fmt.Errorf("--%s=%v: %s", name, value, rule)
}
