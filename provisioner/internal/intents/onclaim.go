package intents

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// This file reads and changes the records on a claim. It has more than one where a volume may be on more than one node.

// Recorded reports whether a claim has a record.
func Recorded(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, volume.FinalizerInProgress)
}

// Owners returns the nodes whose instances have left records on a claim; the name is empty for that of an instance for the whole
// cluster.
func Owners(claim *corev1.PersistentVolumeClaim) (nodes []string, err error) {
	if !Recorded(claim) {
		return nil, nil
	}
	d, err := decode(claim.Annotations[Annotation])
	if err != nil {
		return nil, err
	}
	for _, r := range d.Records {
		node, err := r.node(d.Parts)
		if err != nil {
			return nil, err
		}
		if r.UID == claim.UID {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// ownerFor returns the node in the record that the instance of a node is to go on with.
func ownerFor(claim *corev1.PersistentVolumeClaim, node string) (string, error) {
	owners, err := Owners(claim)
	switch {
	case err != nil:
		return "", err
	case slices.Contains(owners, node):
		return node, nil
	case node == "" && len(owners) > 0:
		return owners[0], nil
	}
	return "", fmt.Errorf("annotation %s: has no record of this claim, made by this instance", Annotation)
}

// Segment returns where the volume of a record is most likely to be, nil when the record does not say it.
func Segment(claim *corev1.PersistentVolumeClaim, node string) (map[string]string, error) {
	intent, err := intentOf(claim, node)
	if err != nil {
		return nil, err
	}
	return preferred(intent.Request.GetAccessibilityRequirements()), nil
}

// intentOf returns the intent of the record of a node.
func intentOf(claim *corev1.PersistentVolumeClaim, node string) (Intent, error) {
	d, err := decode(claim.Annotations[Annotation])
	if err != nil {
		return Intent{}, err
	}
	i := d.find(record{UID: claim.UID, Node: digestOf(node)})
	if i < 0 {
		return Intent{}, fmt.Errorf("annotation %s: has no record of this claim and node %q", Annotation, node)
	}
	return d.Records[i].intent(d.Parts)
}

// addRecord puts a record and the finalizer on a claim.
func addRecord(claim *corev1.PersistentVolumeClaim, r record, shared parts) error {
	switch {
	case Recorded(claim):
	case claim.DeletionTimestamp != nil:
		return errLeaving
	}
	return change(claim, func(d *document) {
		d.drop(r)
		d.Records = append(d.Records, r)
		maps.Copy(d.Parts, shared)
	})
}

// DropRecord takes the record of a node off a claim, and the finalizer with the last one.
func DropRecord(claim *corev1.PersistentVolumeClaim, node string) error {
	return change(claim, func(d *document) { d.drop(record{UID: claim.UID, Node: digestOf(node)}) })
}

// PassRecord makes the record of a node that of another.
func PassRecord(claim *corev1.PersistentVolumeClaim, from, to string) error {
	shared := parts{}
	digest, err := shared.addNode(to)
	if err != nil {
		return err
	}
	return change(claim, func(d *document) {
		if i := d.find(record{UID: claim.UID, Node: digestOf(from)}); i >= 0 {
			d.Records[i].Node = digest
			maps.Copy(d.Parts, shared)
		}
	})
}

// change changes the document of a claim. Records of other claims, from which this one was copied, are of no use.
func change(claim *corev1.PersistentVolumeClaim, how func(*document)) error {
	d, err := decode(claim.Annotations[Annotation])
	if err != nil {
		return err
	}
	if d.Parts == nil {
		d.Parts = parts{}
	}
	how(&d)
	d.Records = slices.DeleteFunc(d.Records, func(r record) bool { return r.UID != claim.UID })
	if len(d.Records) == 0 {
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(name string) bool { return name == volume.FinalizerInProgress })
		delete(claim.Annotations, Annotation)
		return nil
	}
	text, err := encode(d.Records, d.Parts)
	if err != nil {
		return err
	}
	if !Recorded(claim) {
		claim.Finalizers = append(claim.Finalizers, volume.FinalizerInProgress)
	}
	if claim.Annotations == nil {
		claim.Annotations = map[string]string{}
	}
	claim.Annotations[Annotation] = text
	return nil
}
