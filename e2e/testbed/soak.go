package testbed

import (
	"cmp"
	"os"
)

// SoakSetting returns the environment variable LEAKTEST_<name>, by which make soak sets a soak test, or its default.
func SoakSetting(name, preset string) string { return cmp.Or(os.Getenv("LEAKTEST_"+name), preset) }
