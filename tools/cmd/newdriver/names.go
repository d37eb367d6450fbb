package main

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"strings"

	"golang.org/x/mod/module"
)

// Where things are, and what they are called, in this repository.
const (
	project    = "github.com/longshore-csi/longshore"
	driverDir  = "hostpathdriver"
	driverPath = project + "/" + driverDir
	driverName = "hostpath.csi.k8s.io"
	// kitsCopy is where the copy has the kits.
	kitsCopy = "internal"
)

// kits are the modules of which the copy has the packages that it needs.
func kits() []string { return []string{"csikit", "driverkit"} }

func kitPath(kit string) string { return project + "/" + kit }

// names are those of the copy.
type names struct {
	// Driver is the name that CSIDriver objects and storage classes use.
	Driver string
	// Module is the path of the Go module, Package the name of the package in its root.
	Module, Package string
	// Binary is the program, its image and its container.
	Binary string
	// Objects begins the names of Kubernetes objects.
	Objects string
}

// newNames derives all names from two, or returns an error for each rule that they break.
func newNames(driver, modulePath string) (names, error) {
	if err := errors.Join(checkDriver(driver), checkModule(modulePath)); err != nil {
		return names{}, err
	}
	n := names{Driver: driver, Module: modulePath}
	n.Package = strings.ToLower(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(n.element(), ""))
	if n.Package == "" || n.Package[0] <= '9' {
		n.Package = "driver" + n.Package
	}
	if token.IsKeyword(n.Package) || types.Universe.Lookup(n.Package) != nil || n.Package == "main" {
		n.avoid()
	}
	n.Binary = strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(n.element()), "-"), "-")
	if n.Binary == "" {
		n.Binary = n.Package
	}
	n.Objects = n.Binary
	if !strings.Contains(n.Objects, "csi") {
		n.Objects = "csi-" + n.Objects
	}
	// The longest that is made of it is a label value: <Objects>-controller.
	if longest := 63 - len("-controller"); len(n.Objects) > longest {
		return names{}, fmt.Errorf("MODULE=%s: the last element must be short enough for names of Kubernetes objects: %q is longer than %d characters", modulePath, n.Objects, longest)
	}
	return n, nil
}

// avoid takes another name for the package.
func (n *names) avoid() { n.Package += "driver" }

// element is the last element of the module's path, without the version.
func (n *names) element() string {
	prefix, _, _ := module.SplitPathVersion(n.Module)
	return path.Base(prefix)
}

// version is that of the module in other modules of the copy, which take it from its directory.
func (n *names) version() string {
	if _, major, _ := module.SplitPathVersion(n.Module); major != "" {
		return major[1:] + ".0.0"
	}
	return "v0.0.0"
}

// checkDriver applies the rule of CSI v1.13, "GetPluginInfo": domain name notation, at most 63 characters. Kubernetes wants lower
// case besides, as the CSIDriver object and the prefix of the topology key are called so.
func checkDriver(name string) error {
	const label = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	switch {
	case name == "":
		return errors.New("NAME is missing: a domain name such as foo.example.com")
	case len(name) > 63 || !regexp.MustCompile(`^`+label+`(\.`+label+`)+$`).MatchString(name):
		return fmt.Errorf("NAME=%s: must be a domain name of at most 63 characters such as foo.example.com: lower case letters, digits and dashes between dots", name)
	case name == driverName:
		return fmt.Errorf("NAME=%s: is the name of the driver that is copied", name)
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
		return fmt.Errorf("MODULE=%s: is inside of the module that is copied", modulePath)
	}
	return nil
}

// text replaces names wherever they stand outside of Go identifiers. The first that fits counts.
func (n *names) text() *strings.Replacer {
	var imports []string
	for _, kit := range kits() {
		imports = append(imports, kitPath(kit), n.Module+"/"+kitsCopy+"/"+kit)
	}
	return strings.NewReplacer(append(imports,
		driverPath, n.Module,
		"topology.hostpath.csi/", "topology."+n.Driver+"/",
		driverName, n.Driver,
		// What is said of the driver of the same name that the Kubernetes project has.
		"Kubernetes project's hostpath", "Kubernetes project's reference",
		"csi.longshore.dev/", n.Driver+"/", // labels, by which kustomize finds the workloads
		"csi.longshore.dev~1", n.Driver+"~1",
		"longshore:csi-hostpath:", n.Objects+":",
		"longshore:", n.Objects+":",
		"longshore/hostpathplugin:", n.Binary+":",
		"csi-hostpath", n.Objects,
		"hostpathdriver", n.Package,
		"HOSTPATHDRIVER", strings.ToUpper(n.Package),
		"hostpathplugin", n.Binary,
		"hostpath", n.Binary,
	)...)
}

// identifiers replaces names in Go identifiers.
func (n *names) identifiers() *strings.Replacer {
	return strings.NewReplacer("hostpathdriver", n.Package, "hostpath", n.Package)
}

// leftover returns the first old name in a line, if any. Old names that are part of new ones are none, and neither is what must stay:
// the field of Kubernetes, and the images of the sidecars.
func (n *names) leftover(line string) string {
	kept := strings.NewReplacer(n.Module, "", n.Driver, "", n.Objects, "", n.Binary, "", n.Package, "", strings.ToUpper(n.Package), "",
		"hostPath", "", "image: longshore/", "")
	return regexp.MustCompile(`(?i)hostpath|longshore`).FindString(kept.Replace(line))
}
