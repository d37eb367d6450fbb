package controller

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

const ebsDriver = "ebs.csi.aws.com"

// migrationCase is one volume of an in-tree plugin, as the attacher gets it.
type migrationCase struct {
	driver, nodeID string
	va             *storagev1.VolumeAttachment
	pv             *corev1.PersistentVolume // as it is cached; nil for an inline volume
}

// requests returns what the driver is asked for, and under which handle it lists the volume.
func (c migrationCase) requests() (string, error) {
	source, err := newSource(c.va, c.pv)
	if err != nil {
		return "", err
	}
	node := newCSINode(c.driver, c.nodeID)
	features := Features{Publish: true, Readonly: true, SingleNodeMultiWriter: true, ListPublished: true}
	attach, err := planAttach(attachInput{va: c.va, source: source, nodeID: c.nodeID, features: features, finalizer: FinalizerName(c.driver)})
	if err != nil {
		return "", err
	}
	// As the external-attacher leaves it: without a recorded handle.
	vaFinalized(c.va)
	detach, err := planDetach(detachInput{va: c.va, source: source, nodeIDs: detachNodeIDs(c.va.Annotations[AnnotationNodeID], csiNodeID(node, c.driver)), finalizer: FinalizerName(c.driver)})
	if err != nil {
		return "", err
	}
	listed := "(not compared)"
	if handle := expectedHandle(c.va, c.pv, c.nodeID); handle != "" {
		listed = "volume_id: " + handle
	}
	text := fmt.Sprintf("migrated: %t\n", source.migrated)
	if attach.secret != nil {
		text += fmt.Sprintf("secret: %s\n", formatSecretRef(attach.secret))
	}
	return text + "ControllerPublishVolume\n" + render(attach.publish) + "ControllerUnpublishVolume\n" + render(detach.unpublish[0]) +
		"ListVolumes\n    " + listed + "\n", nil
}

// render prints a message as YAML.
func render(message proto.Message) string {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		return err.Error()
	}
	text, err := yaml.JSONToYAML(data)
	if err != nil {
		return err.Error()
	}
	return "    " + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n    ") + "\n"
}

// TestMigration plays testdata/migration, a file for each in-tree plugin: the command "pv" has a PersistentVolume, "inline" a volume
// of a pod, which the attach/detach controller translates. The output has the calls to the driver.
func TestMigration(t *testing.T) {
	datadriven.Walk(t, "testdata/migration", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			c := migrationCase{}
			d.ScanArgs(t, "driver", &c.driver)
			d.ScanArgs(t, "node", &c.nodeID)
			if err := c.read(d.Cmd, d.Input); err != nil {
				return err.Error() + "\n"
			}
			c.va.Spec.Attacher = c.driver
			text, err := c.requests()
			if err != nil {
				return err.Error() + "\n"
			}
			return text
		})
	})
}

// read makes the objects of a command.
func (c *migrationCase) read(command, text string) error {
	switch command {
	case "pv":
		pv := &corev1.PersistentVolume{}
		if err := yaml.UnmarshalStrict([]byte(text), pv); err != nil {
			return err
		}
		c.pv, c.va = slimPV(c.driver)(pv), newVA()
		_, err := translate(c.driver, c.pv)
		return err
	case "inline":
		volume := &corev1.Volume{}
		if err := yaml.UnmarshalStrict([]byte(text), volume); err != nil {
			return err
		}
		pv, err := csitranslation.New().TranslateInTreeInlineVolumeToCSI(klog.Logger{}, volume, "apps")
		if err != nil {
			return err
		}
		c.va = newVA(vaInline(&pv.Spec))
		return nil
	}
	return fmt.Errorf("%w: command %q", errors.ErrUnsupported, command)
}

// TestSlimPV verifies what the cache keeps of PersistentVolumes: of in-tree volumes nothing but the volumes of the plugin that the
// driver replaces, and of labels and annotations nothing that only the translation reads.
func TestSlimPV(t *testing.T) {
	ebs := corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://z/vol-1"}}
	broken := corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://z/disk-1"}}
	cinder := corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "vol-1"}}
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: ebsDriver, VolumeHandle: "vol-1", VolumeAttributes: map[string]string{"partition": "0"},
	}}
	both := corev1.PersistentVolumeSource{AWSElasticBlockStore: ebs.AWSElasticBlockStore, CSI: csi.CSI}
	labels := map[string]string{"topology.kubernetes.io/zone": "z"}
	annotations := map[string]string{AnnotationMigratedTo: ebsDriver, "other": "x"}

	tests := map[string]struct {
		reason      string
		driver      string
		source      corev1.PersistentVolumeSource
		want        corev1.PersistentVolumeSource
		labels      map[string]string
		annotations map[string]string
	}{
		"Plugin": {
			reason: "translated, with the proof that it was", driver: ebsDriver, source: ebs, want: both,
			annotations: map[string]string{AnnotationMigratedTo: ebsDriver},
		},
		"Broken": {
			reason: "whole, for the error message", driver: ebsDriver, source: broken, want: broken, labels: labels, annotations: annotations,
		},
		"OtherPlugin": {reason: "its driver has another attacher", driver: ebsDriver, source: cinder, annotations: map[string]string{AnnotationMigratedTo: ebsDriver}},
		"OwnVolume":   {reason: "a CSI volume is no migrated one", driver: ebsDriver, source: csi, want: csi, annotations: map[string]string{AnnotationMigratedTo: ebsDriver}},
		"NoPlugin":    {reason: "a driver that replaces nothing", driver: testDriver, source: ebs},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			slim := slimPV(tt.driver)
			pv := slim(newPV(func(pv *corev1.PersistentVolume) {
				pv.Spec.PersistentVolumeSource, pv.Labels, pv.Annotations = tt.source, maps.Clone(labels), maps.Clone(annotations)
			}))
			for round := range 2 { // an informer may show an object twice
				if diff := cmp.Diff(tt.want, pv.Spec.PersistentVolumeSource); diff != "" {
					t.Errorf("round %d: %s (-want +got):\n%s", round, tt.reason, diff)
				}
				if diff := cmp.Diff(tt.labels, pv.Labels) + cmp.Diff(tt.annotations, pv.Annotations); diff != "" {
					t.Errorf("round %d: labels and annotations (-want +got):\n%s", round, diff)
				}
				pv = slim(pv)
			}
		})
	}
}
