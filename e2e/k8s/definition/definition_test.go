package definition

import (
	"os"
	"strings"
	"testing"
)

const driverFile = "../../../deploy/test-driver.yaml"

func driverText(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(driverFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestOurDriver(t *testing.T) {
	if err := Check([]byte(driverText(t))); err != nil {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		reason   string
		old, new string
		add      string
		want     string
	}{
		"UnknownKey":    {reason: "the suite would ignore it", add: "Unheard: true\n", want: `unknown field "Unheard"`},
		"InnerKey":      {reason: "also further down", old: "  TopologyKeys:", new: "  TopologyKey:", want: `unknown field "DriverInfo.TopologyKey"`},
		"OtherCase":     {reason: "the suite's decoder minds the case", old: "  Name: ", new: "  name: ", want: `unknown field "DriverInfo.name"`},
		"ClassKey":      {reason: "classes are decoded as strictly", old: "\nSnapshotClass:\n  From", new: "\nSnapshotClass:\n  Of", want: `unknown field "SnapshotClass.OfExistingClassName"`},
		"NoClassByName": {reason: "an attributes class needs parameters", old: "FromFile: test-attributesclass.yaml", new: "FromName: true", want: `unknown field "VolumeAttributesClass.FromName"`},
		"Capability":    {reason: "capabilities are map keys, which no decoder checks", old: "  RWX:", new: "  rwx:", want: `capability "rwx"`},
		"Twice":         {reason: "the last would win", add: "StorageClass: {FromName: true}\n", want: "already set"},
		"NoName":        {reason: "specs are found by the driver's name", old: "Name: hostpath.csi.k8s.io", new: `Name: ""`, want: "DriverInfo.Name is not set"},
		"Timeout":       {reason: "a timeout that is meant is not left at its default", add: "Timeouts: {PodStarts: 1m}\n", want: `unknown field "PodStarts"`},
		"Duration":      {reason: "one bad duration would put all back to their defaults", add: "Timeouts: {PodStart: 60}\n", want: "Timeouts"},
		"NoUnit":        {reason: "durations have units", add: "Timeouts: {PodStart: \"60\"}\n", want: "missing unit"},
		"GoodTimeout":   {reason: "timeouts go by the names of the framework's fields", add: "Timeouts: {PodStart: 1m}\n"},
		"Type":          {reason: "values have the right type", old: "MaxFileSize: 104857600", new: "MaxFileSize: 100Mi", want: "MaxFileSize"},
	}
	text := driverText(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(text, tc.old) {
				t.Fatalf("%s has no %q to change", driverFile, tc.old)
			}
			err := Check([]byte(strings.Replace(text, tc.old, tc.new, 1) + tc.add))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestEverythingWrongIsToldAtOnce(t *testing.T) {
	err := Check([]byte("DriverInfo: {Capabilities: {blocks: true}}\nTimeouts: {PodStart: soon, Never: 1s}\n"))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"DriverInfo.Name", `"blocks"`, "PodStart", "Never"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("lacks %q:\n%v", want, err)
		}
	}
}
