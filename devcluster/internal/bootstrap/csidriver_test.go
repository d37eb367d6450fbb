package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/apply"
)

func TestCSIDriverOfTheUser(t *testing.T) {
	const object = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: d.example.com}\nspec: {attachRequired: false}\n"
	tests := map[string]struct{ reason, text, driver, want string }{
		"Own":       {"a file with the object of the driver", "# mine\n---\n" + object, "d.example.com", ""},
		"OtherName": {"the object would not be that of the driver", object, "e.example.com", `named "d.example.com", but the driver answers that its name is "e.example.com"`},
		"Two":       {"which one?", object + "---\n" + object, "d.example.com", "must have one object"},
		"OtherKind": {"another object", strings.Replace(object, "CSIDriver", "CSINode", 1), "d.example.com", "must have objects of storage.k8s.io/v1 CSIDriver"},
		"Empty":     {"no object", "# nothing\n", "d.example.com", "must have an object"},
		"Malformed": {"no YAML", "{", "d.example.com", "decode document 1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "csidriver.yaml")
			if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			o, err := Driver{Info: csiclient.Info{Name: tc.driver}, File: file}.csiDriver()
			switch {
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), file)):
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			case tc.want == "" && (err != nil || o.GetName() != tc.driver):
				t.Errorf("%s: got %v, %v", tc.reason, o, err)
			}
		})
	}
	if _, err := ReadCSIDriver(filepath.Join(t.TempDir(), "absent")); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("no file: %v", err)
	}
}

func announcing(capabilities ...csi.ControllerServiceCapability_RPC_Type) csiclient.Info {
	info := csiclient.Info{Name: "d.example.com", Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{}}
	for _, c := range capabilities {
		info.Controller[c] = true
	}
	return info
}

// TestDefaultObjects are made from what the driver answers.
func TestDefaultObjects(t *testing.T) {
	const create, attach, capacity = csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_GET_CAPACITY
	expands := announcing(create)
	expands.Expansion = map[csi.PluginCapability_VolumeExpansion_Type]bool{csi.PluginCapability_VolumeExpansion_ONLINE: true}
	persistent := []any{"Persistent"}
	tests := map[string]struct {
		reason string
		driver Driver
		spec   map[string]any
		class  map[string]any
	}{
		"NodeOnly": {
			reason: "a driver without a controller service has no class",
			driver: Driver{Info: announcing()},
			spec:   map[string]any{"attachRequired": false, "storageCapacity": false, "volumeLifecycleModes": persistent},
		},
		"Creates": {
			reason: "no pod waits for an attachment that the driver does not make",
			driver: Driver{Info: announcing(create)},
			spec:   map[string]any{"attachRequired": false, "storageCapacity": false, "volumeLifecycleModes": persistent},
			class:  map[string]any{"provisioner": "d.example.com", "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": false},
		},
		"Attaches": {
			reason: "a driver with ControllerPublishVolume and GetCapacity",
			driver: Driver{Info: announcing(create, attach, capacity)},
			spec:   map[string]any{"attachRequired": true, "storageCapacity": true, "volumeLifecycleModes": persistent},
			class:  map[string]any{"provisioner": "d.example.com", "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": false},
		},
		"Expands": {
			reason: "claims may grow",
			driver: Driver{Info: expands},
			spec:   map[string]any{"attachRequired": false, "storageCapacity": false, "volumeLifecycleModes": persistent},
			class:  map[string]any{"provisioner": "d.example.com", "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true},
		},
		"Reference": {
			reason: "the reference driver has its object, and no class",
			driver: Driver{Info: announcing(create, attach), Reference: true},
			spec: map[string]any{
				"attachRequired": true, "podInfoOnMount": true, "fsGroupPolicy": "None", "storageCapacity": false, "volumeLifecycleModes": []any{"Persistent", "Ephemeral"},
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			object, err1 := tc.driver.csiDriver()
			classes, err2 := tc.driver.storageClasses()
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.spec, object.Object["spec"]); diff != "" || object.GetKind() != "CSIDriver" || object.GetName() != "d.example.com" {
				t.Errorf("%s: %s\n%s", tc.reason, apply.Name(object), diff)
			}
			var class map[string]any
			for _, c := range classes {
				if class = c.Object; c.GetKind() != "StorageClass" || c.GetName() != "d.example.com" {
					t.Errorf("%s: %s", tc.reason, apply.Name(c))
				}
				for _, key := range []string{"apiVersion", "kind", "metadata"} {
					delete(class, key)
				}
			}
			if diff := cmp.Diff(tc.class, class); diff != "" {
				t.Errorf("%s: the class:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestStorageClassesOfTheUser replace the default one, and must be those of the driver.
func TestStorageClassesOfTheUser(t *testing.T) {
	file := filepath.Join(t.TempDir(), "classes.yaml")
	const class = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: %s}\nprovisioner: %s\n---\n"
	if err := os.WriteFile(file, fmt.Appendf(nil, class+class, "fast", "d.example.com", "slow", "d.example.com"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := Driver{Info: announcing(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME), ClassFile: file}
	if list, err := d.storageClasses(); err != nil || len(list) != 2 || list[1].GetName() != "slow" {
		t.Errorf("got %v, %v", list, err)
	}
	d.Info.Name = "e.example.com"
	if _, err := d.storageClasses(); err == nil || !strings.Contains(err.Error(), `StorageClass/slow has the provisioner "d.example.com", but the driver answers that its name is "e.example.com"`) {
		t.Errorf("classes of another driver: %v", err)
	}
}
