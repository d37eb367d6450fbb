package capabilities

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

func TestCapabilities(t *testing.T) {
	all := &csiclient.Info{
		Plugin: map[csi.PluginCapability_Service_Type]bool{
			csi.PluginCapability_Service_CONTROLLER_SERVICE:               true,
			csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS: true,
		},
		Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:     true,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: true,
			csi.ControllerServiceCapability_RPC_MODIFY_VOLUME:            true,
			csi.ControllerServiceCapability_RPC_GET_CAPACITY:             true,
			csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true,
			csi.ControllerServiceCapability_RPC_CLONE_VOLUME:             true,
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:   true,
		},
	}
	on := Features{Topology: true, AttributesClass: true}
	cases := map[string]struct {
		reason   string
		info     *csiclient.Info
		features Features
		want     Set
		shape    view.Shape
	}{
		"All":      {reason: "What the driver can do is used.", info: all, features: on, want: Set{true, true, true, true, true, true, true, true, true}, shape: view.Shape{Topology: true, Attachments: true, Snapshots: true}},
		"Features": {reason: "Features that are off are not.", info: all, want: Set{Create: true, Publish: true, Capacity: true, Clone: true, Snapshot: true, SingleNode: true}, shape: view.Shape{Attachments: true, Snapshots: true}},
		"Unknown":  {reason: "A driver that was not heard of can do nothing.", features: on, want: Set{}},
		"NoController": {
			reason: "Without the controller service its capabilities are void.", features: on,
			info: &csiclient.Info{Plugin: map[csi.PluginCapability_Service_Type]bool{}, Controller: all.Controller}, want: Set{Attributes: true},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Of(tc.info, tc.features); got != tc.want {
				t.Errorf("%s\ncapabilities %+v, want %+v", tc.reason, got, tc.want)
			}
			if got := ShapeOf(tc.info, tc.features); got != tc.shape {
				t.Errorf("%s\nshape %+v, want %+v", tc.reason, got, tc.shape)
			}
		})
	}
}

// TestCheck names the driver and what it lacks.
func TestCheck(t *testing.T) {
	info := &csiclient.Info{
		Name: "d", Plugin: map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_CONTROLLER_SERVICE: true},
		Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME: true},
	}
	if err := Check(info); err != nil {
		t.Error(err)
	}
	info.Controller = nil
	if err := Check(info); err == nil || !strings.Contains(err.Error(), `"d"`) || !strings.Contains(err.Error(), "CREATE_DELETE_VOLUME") {
		t.Errorf("error %v", err)
	}
}
