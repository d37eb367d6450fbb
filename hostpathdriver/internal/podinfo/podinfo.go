// Package podinfo reads what the kubelet tells a driver about the pod in
// NodePublishVolume's volume_context, when the CSIDriver object asks for it
// (podInfoOnMount).
//
// Do not use it to authorise: without podInfoOnMount the same keys may come
// from whoever wrote the volume attributes.
package podinfo

import (
	"fmt"
	"strconv"
)

// Keys that the kubelet sets today.
const (
	KeyPodName        = "csi.storage.k8s.io/pod.name"
	KeyPodNamespace   = "csi.storage.k8s.io/pod.namespace"
	KeyPodUID         = "csi.storage.k8s.io/pod.uid"
	KeyServiceAccount = "csi.storage.k8s.io/serviceAccount.name"
	KeyEphemeral      = "csi.storage.k8s.io/ephemeral"
)

// legacyPrefix is the prefix of the same keys in the design document (seed
// 002); it is read, never written.
const legacyPrefix = "csi.kubernetes.io/"

// Info is the pod for which a volume is published. The zero value means that
// the kubelet told nothing.
type Info struct {
	Name           string
	Namespace      string
	UID            string
	ServiceAccount string
	// Ephemeral tells an inline volume from a persistent one. A missing key
	// means persistent.
	Ephemeral bool
}

// Parse reads a volume context. A value of the ephemeral key that is no
// boolean is an error: to guess would lose data.
func Parse(volumeContext map[string]string) (Info, error) {
	info := Info{
		Name:           lookup(volumeContext, KeyPodName, "pod.name"),
		Namespace:      lookup(volumeContext, KeyPodNamespace, "pod.namespace"),
		UID:            lookup(volumeContext, KeyPodUID, "pod.uid"),
		ServiceAccount: lookup(volumeContext, KeyServiceAccount, "serviceAccount.name"),
	}
	ephemeral := lookup(volumeContext, KeyEphemeral, "ephemeral")
	if ephemeral == "" {
		return info, nil
	}
	value, err := strconv.ParseBool(ephemeral)
	if err != nil {
		return Info{}, fmt.Errorf("volume context key %s: %q must be true or false", KeyEphemeral, ephemeral)
	}
	info.Ephemeral = value
	return info, nil
}

// String names the pod for messages: "namespace/name", or "" when unknown.
func (i Info) String() string {
	if i.Name == "" {
		return ""
	}
	return i.Namespace + "/" + i.Name
}

func lookup(volumeContext map[string]string, key, legacy string) string {
	if value, found := volumeContext[key]; found {
		return value
	}
	return volumeContext[legacyPrefix+legacy]
}
