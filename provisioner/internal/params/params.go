// Package params reads the parameters of a StorageClass: it takes out the keys that belong to Kubernetes
// (file system type, secret references) and leaves those that belong to the driver. It is pure: it looks
// at maps of strings and touches neither the API nor the driver. Use it for StorageClass parameters only;
// the parameters of a VolumeAttributesClass are handed to the driver as they are.
package params

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/longshore-csi/longshore/csikit/secretref"
)

// Prefix is the prefix of every parameter key that is reserved for Kubernetes. An unknown key with this
// prefix is an error, so that a misspelt key never reaches a driver that would ignore it.
const Prefix = "csi.storage.k8s.io/"

// Keys which are added to the parameters of CreateVolume by --extra-create-metadata, and which a
// StorageClass may therefore not set.
const (
	KeyClaimName      = Prefix + "pvc/name"
	KeyClaimNamespace = Prefix + "pvc/namespace"
	KeyPVName         = Prefix + "pv/name"
)

// KeyFSType selects the file system of the volume. The bare key "fstype", in any case, is its deprecated
// form, which goes to the driver as well.
const (
	KeyFSType           = Prefix + "fstype"
	deprecatedKeyFSType = "fstype"
)

// Class is the meaning of the parameters of one StorageClass.
type Class struct {
	// FSType is the file system asked for; empty when the class leaves it open.
	FSType string
	// Driver holds the parameters that go to the driver.
	Driver map[string]string
	// templates holds the secret templates by operation; an operation without a secret is absent.
	templates map[operation]secretref.Template
}

// Parse reads the parameters of a StorageClass. All that is wrong is reported at once, each error naming
// the key and the rule that it breaks.
func Parse(parameters map[string]string) (Class, error) {
	fsType, fsErr := parseFSType(parameters)
	templates, secretErr := parseSecrets(parameters)
	driver, driverErr := driverParameters(parameters)
	if err := errors.Join(fsErr, secretErr, driverErr); err != nil {
		return Class{}, err
	}
	return Class{FSType: fsType, Driver: driver, templates: templates}, nil
}

// parseFSType finds the file system type under its present or its deprecated key.
func parseFSType(parameters map[string]string) (string, error) {
	var found []string
	for key := range parameters {
		if lower := strings.ToLower(key); lower == deprecatedKeyFSType || lower == KeyFSType {
			found = append(found, key)
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return parameters[found[0]], nil
	}
	slices.Sort(found)
	return "", fmt.Errorf("storage class parameters %q: the file system type may be given once only, use %q", found, KeyFSType)
}

// driverParameters returns the parameters without those that are reserved.
func driverParameters(parameters map[string]string) (map[string]string, error) {
	var errs []error
	driver := make(map[string]string, len(parameters))
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch {
		case !strings.HasPrefix(key, Prefix):
			driver[key] = parameters[key]
		case !reserved(key):
			errs = append(errs, fmt.Errorf("storage class parameter %q: unknown parameter key with the reserved prefix %q", key, Prefix))
		}
	}
	return driver, errors.Join(errs...)
}

// reserved reports whether a prefixed key is one that this package knows.
func reserved(key string) bool {
	if key == KeyFSType || key == defaultKeys.name || key == defaultKeys.namespace {
		return true
	}
	for _, op := range operations() {
		if keys := op.keys(); key == keys.name || key == keys.namespace {
			return true
		}
	}
	return false
}
