// Package drivername has the rule for the name of a CSI driver, which drivers and components share. It links nothing.
package drivername

import (
	"fmt"
	"strings"
)

// maxLength is the API's limit on the name of a driver.
const maxLength = 63

// Validate checks the name of a driver by the rule of the specification
// and of Kubernetes: a DNS-1123 subdomain of at most 63 bytes. Upper case is
// allowed, as both allow it. CSI spec v1.13, "GetPluginInfo".
func Validate(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("CSI driver name %q: must not be empty", name)
	case len(name) > maxLength:
		return fmt.Errorf("CSI driver name %q: must not exceed %d characters, this one has %d", name, maxLength, len(name))
	case !valid(name):
		return fmt.Errorf("CSI driver name %q: must consist of alphanumeric characters, '-' and '.', and begin and end each part with an alphanumeric character", name)
	}
	return nil
}

// valid reports whether each part between dots is a DNS-1123 label, in any case.
func valid(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.ContainsFunc(label, func(r rune) bool { return !isLabelRune(r) }) {
			return false
		}
	}
	return true
}

func isLabelRune(r rune) bool {
	return r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}
