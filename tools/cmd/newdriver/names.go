package main

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"golang.org/x/mod/module"
)

// project is the path of the modules of this repository.
const project = "github.com/longshore-csi/longshore"

// names are those of the new driver.
type names struct {
	// Driver is the name that CSIDriver objects and StorageClasses use.
	Driver string
	// Module is the path of the Go module.
	Module string
	// Binary is the program, its image and its chart.
	Binary string
	// Checkout is the directory of this repository as seen from the driver's.
	Checkout string
}

// newNames derives all names from two, or returns an error for each rule that they break.
func newNames(driver, modulePath string) (names, error) {
	if err := errors.Join(checkDriver(driver), checkModule(modulePath)); err != nil {
		return names{}, err
	}
	prefix, _, _ := module.SplitPathVersion(modulePath)
	n := names{Driver: driver, Module: modulePath}
	n.Binary = strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(path.Base(prefix)), "-"), "-")
	if n.Binary == "" {
		n.Binary = "driver"
	}
	return n, nil
}

// checkDriver applies the rule of CSI v1.13, "GetPluginInfo": domain name notation, at most 63 characters. Kubernetes wants lower case besides, as the
// CSIDriver object is called so.
func checkDriver(name string) error {
	const label = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	switch {
	case name == "":
		return errors.New("NAME is missing: a domain name such as foo.example.com")
	case len(name) > 63 || !regexp.MustCompile(`^`+label+`(\.`+label+`)+$`).MatchString(name):
		return fmt.Errorf("NAME=%s: must be a domain name of at most 63 characters such as foo.example.com: lower case letters, digits and dashes between dots", name)
	}
	return nil
}

func checkModule(modulePath string) error {
	if modulePath == "" {
		return errors.New("MODULE is missing: a Go module path such as example.com/foo")
	}
	if err := module.CheckPath(modulePath); err != nil {
		return fmt.Errorf("MODULE=%s: %w", modulePath, err)
	}
	if modulePath == project || strings.HasPrefix(modulePath, project+"/") {
		return fmt.Errorf("MODULE=%s: must not be a module of this repository", modulePath)
	}
	return nil
}
