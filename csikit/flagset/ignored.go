package flagset

import (
	"flag"
	"fmt"
	"strconv"
	"time"
)

// Ignored accepts flags that have no effect here, so that a manifest written for
// another version keeps working. The zero value is ready to use.
//
// Values are still checked for their type: a typing error stays an error.
type Ignored struct {
	flags []*ignoredFlag
}

// Bool registers a flag that takes true or false, or stands alone.
func (i *Ignored) Bool(fs *flag.FlagSet, name, why string) {
	i.add(fs, name, why, true, func(text string) error {
		_, err := strconv.ParseBool(text)
		return err
	})
}

// Duration registers a flag that takes a duration such as 30s.
func (i *Ignored) Duration(fs *flag.FlagSet, name, why string) {
	i.add(fs, name, why, false, func(text string) error {
		_, err := time.ParseDuration(text)
		return err
	})
}

// Int registers a flag that takes a whole number.
func (i *Ignored) Int(fs *flag.FlagSet, name, why string) {
	i.add(fs, name, why, false, func(text string) error {
		_, err := strconv.Atoi(text)
		return err
	})
}

// String registers a flag that takes any text.
func (i *Ignored) String(fs *flag.FlagSet, name, why string) {
	i.add(fs, name, why, false, func(string) error { return nil })
}

// AutoMaxProcs registers --automaxprocs, for binaries that compute on one processor (command.OnOneProcessor).
func (i *Ignored) AutoMaxProcs(fs *flag.FlagSet) {
	i.Bool(fs, "automaxprocs", "the process uses one processor, unless the environment variable GOMAXPROCS has another number")
}

// Warnings implements Warner.
func (i *Ignored) Warnings() []string {
	var warnings []string
	for _, f := range i.flags {
		if f.given {
			warnings = append(warnings, fmt.Sprintf("--%s has no effect: %s", f.name, f.why))
		}
	}
	return warnings
}

func (i *Ignored) add(fs *flag.FlagSet, name, why string, isBool bool, check func(string) error) {
	f := &ignoredFlag{name: name, why: why, isBool: isBool, check: check}
	i.flags = append(i.flags, f)
	fs.Var(f, name, "ignored: "+why)
}

// ignoredFlag is the flag.Value of one ignored flag.
type ignoredFlag struct {
	name, why string
	isBool    bool
	given     bool
	check     func(string) error
}

// String implements flag.Value.
func (f *ignoredFlag) String() string { return "" }

// IsBoolFlag lets the flag stand without a value.
func (f *ignoredFlag) IsBoolFlag() bool { return f.isBool }

// Set implements flag.Value.
func (f *ignoredFlag) Set(text string) error {
	if err := f.check(text); err != nil {
		return err
	}
	f.given = true
	return nil
}
