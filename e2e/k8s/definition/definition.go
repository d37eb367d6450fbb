// Package definition checks the file that tells the storage suite of Kubernetes what a driver can do.
//
// The suite itself ignores what it does not know, so that a misspelt capability is one that is never tested. Its type is not
// exported; a test compares the copy here with the source.
package definition

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	utiljson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	e2eframework "k8s.io/kubernetes/test/e2e/framework"
	storageframework "k8s.io/kubernetes/test/e2e/storage/framework"
)

// Class says where the suite gets a class from: nowhere, or from one of these.
type Class struct {
	// FromName makes a class without parameters, whose provisioner is the driver.
	FromName bool
	// FromFile is a file with the class.
	FromFile string
	// FromExistingClassName is a class of the cluster; the suite works with copies of it.
	FromExistingClassName string
}

// ModifyClass is a Class without FromName: one without parameters would modify nothing.
type ModifyClass struct {
	FromFile              string
	FromExistingClassName string
}

// InlineVolume is a volume that a pod defines by itself.
type InlineVolume struct {
	// Attributes is the volume_context of NodePublishVolume.
	Attributes map[string]string
	// Shared volumes show to one pod what another has written. Unless it is set the suite checks that they do not.
	Shared bool
	// ReadOnly volumes cannot be written to.
	ReadOnly bool
}

// Definition has the keys of the file: driverDefinition of k8s.io/kubernetes/test/e2e/storage/external.
type Definition struct {
	DriverInfo            storageframework.DriverInfo
	StorageClass          Class
	VolumeAttributesClass ModifyClass
	SnapshotClass         Class
	GroupSnapshotClass    Class
	InlineVolumes         []InlineVolume
	ClientNodeName        string
	NodeSelectors         map[string]string
	// Timeouts are durations by the field names of framework.TimeoutContext.
	Timeouts map[string]string
}

// capabilities are those that the suite asks for.
func capabilities() []storageframework.Capability {
	return []storageframework.Capability{
		storageframework.CapPersistence, storageframework.CapBlock, storageframework.CapFsGroup, storageframework.CapVolumeMountGroup,
		storageframework.CapExec, storageframework.CapSnapshotDataSource, storageframework.CapSnapshotMetadata,
		storageframework.CapVolumeGroupSnapshot, storageframework.CapPVCDataSource, storageframework.CapMultiPODs, storageframework.CapRWX,
		storageframework.CapControllerExpansion, storageframework.CapNodeExpansion, storageframework.CapOfflineExpansion,
		storageframework.CapOnlineExpansion, storageframework.CapVolumeLimits, storageframework.CapSingleNodeVolume,
		storageframework.CapTopology, storageframework.CapCapacity, storageframework.CapFSResizeFromSourceNotSupported,
		storageframework.CapReadWriteOncePod, storageframework.CapMultiplePVsSameID, storageframework.CapReadOnlyMany,
		storageframework.CapSELinuxMount,
	}
}

// Check reports everything in a definition, in YAML or JSON, that the suite would ignore: keys that it does not know, also
// those that are only spelt in another case, capabilities, and timeouts.
func Check(data []byte) error {
	var d Definition
	if err := decode(data, &d); err != nil {
		return err
	}
	var errs []error
	if d.DriverInfo.Name == "" {
		errs = append(errs, errors.New("DriverInfo.Name is not set"))
	}
	for name := range d.DriverInfo.Capabilities {
		if !slices.Contains(capabilities(), name) {
			errs = append(errs, fmt.Errorf("capability %q: the suite has no such", name))
		}
	}
	return errors.Join(append(errs, checkTimeouts(d.Timeouts))...)
}

// decode is as strict as it gets; names must match in case, as they must for the suite.
func decode(data []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	strict, err := utiljson.UnmarshalStrict(asJSON, into)
	return errors.Join(append(strict, err)...)
}

func checkTimeouts(timeouts map[string]string) error {
	var errs []error
	durations := map[string]time.Duration{}
	for name, text := range timeouts {
		d, err := time.ParseDuration(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("timeout %s: %w", name, err))
		}
		durations[name] = d
	}
	asJSON, err := json.Marshal(durations)
	if err != nil {
		return err
	}
	return errors.Join(append(errs, decode(asJSON, &e2eframework.TimeoutContext{}))...)
}
