package flagset

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
)

// Stage is the maturity of a feature.
type Stage string

// The stages of a feature. A gate that is GA or Deprecated is accepted with a warning.
const (
	Alpha      Stage = "ALPHA"
	Beta       Stage = "BETA"
	GA         Stage = "GA"
	Deprecated Stage = "DEPRECATED"
)

// Gate describes one feature.
type Gate struct {
	// Default is the value without a flag.
	Default bool
	// Stage is the maturity of the feature.
	Stage Stage
	// Locked gates cannot leave their default.
	Locked bool
}

// Gates that set all others of a stage, except those that are set by name.
const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

// FeatureGates switches features by --feature-gates=Name=true,Other=false. AllAlpha and AllBeta
// set all gates of a stage. Gates that the replaced components accept and that switch nothing
// here are accepted with a warning.
type FeatureGates struct {
	known map[string]Gate
	set   map[string]bool
}

// NewFeatureGates returns gates for the features that the component knows.
func NewFeatureGates(known map[string]Gate) FeatureGates {
	return FeatureGates{known: known, set: map[string]bool{}}
}

// AddFlags registers --feature-gates, which may be given several times; the last value of a name wins.
func (f *FeatureGates) AddFlags(fs *flag.FlagSet) {
	usage := "comma-separated `name=bool` pairs that switch features; AllAlpha and AllBeta set all features of a stage"
	for _, name := range sortedKeys(f.known) {
		gate := f.known[name]
		usage += fmt.Sprintf("; %s (%s, default %t)", name, gate.Stage, gate.Default)
	}
	fs.Func("feature-gates", usage, f.Set)
}

// Enabled reports whether the feature is on. Asking for a feature that the
// component did not declare is a mistake in the program, and panics.
func (f *FeatureGates) Enabled(name string) bool {
	gate, ok := f.known[name]
	if !ok {
		panic(fmt.Sprintf("feature gate %q was not declared", name))
	}
	if value, ok := f.set[name]; ok {
		return value
	}
	if value, ok := f.set[stages()[gate.Stage]]; ok && !gate.Locked {
		return value
	}
	return gate.Default
}

// stages returns the gate that sets all gates of a stage.
func stages() map[Stage]string { return map[Stage]string{Alpha: allAlpha, Beta: allBeta} }

// Explicit reports whether the user has set the gate, to whatever value.
func (f *FeatureGates) Explicit(name string) bool {
	_, ok := f.set[name]
	return ok
}

// Set takes name=bool pairs separated by commas. Nothing is changed when one of them is wrong.
func (f *FeatureGates) Set(text string) error {
	next := map[string]bool{}
	var errs []error
	for _, pair := range strings.Split(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, err := f.parse(pair)
		errs = append(errs, err)
		next[name] = value
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if f.set == nil {
		f.set = map[string]bool{}
	}
	for name, value := range next {
		f.set[name] = value
	}
	return nil
}

func (f *FeatureGates) parse(pair string) (name string, value bool, err error) {
	name, text, ok := strings.Cut(strings.TrimSpace(pair), "=")
	name, text = strings.TrimSpace(name), strings.TrimSpace(text)
	if !ok {
		return "", false, fmt.Errorf("%q must be name=true or name=false", pair)
	}
	gate, known := f.known[name]
	if _, retired := retiredGates()[name]; !known && !retired && name != allAlpha && name != allBeta {
		return "", false, fmt.Errorf("unknown feature gate %q, known are: %s", name, strings.Join(sortedKeys(f.known), ", "))
	}
	value, err = strconv.ParseBool(text)
	if err != nil {
		return "", false, fmt.Errorf("feature gate %s=%q must be true or false", name, text)
	}
	if gate.Locked && value != gate.Default {
		return "", false, fmt.Errorf("feature gate %s is locked to %t", name, gate.Default)
	}
	return name, value, nil
}

// Validate implements Group. Set has refused everything that is wrong already.
func (f *FeatureGates) Validate() error { return nil }

// Warnings implements Warner: gates that were set although they have no effect or will be removed.
func (f *FeatureGates) Warnings() []string {
	var warnings []string
	for _, name := range sortedKeys(f.set) {
		gate, known := f.known[name]
		if why := retiredGates()[name]; why != "" && !known {
			warnings = append(warnings, fmt.Sprintf("--feature-gates: %s has no effect: %s", name, why))
			continue
		}
		switch gate.Stage {
		case GA:
			warnings = append(warnings, fmt.Sprintf("--feature-gates: %s is generally available and will be removed", name))
		case Deprecated:
			warnings = append(warnings, fmt.Sprintf("--feature-gates: %s is deprecated and will be removed", name))
		default: // it is there to be switched
		}
	}
	return warnings
}
