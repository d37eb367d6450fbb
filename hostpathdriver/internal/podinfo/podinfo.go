// Package podinfo reads the information about the pod that the kubelet sends in
// NodePublishVolume: its names in the volume_context, when the CSIDriver object
// asks for them (podInfoOnMount), and tokens of its service account
// (tokenRequests).
//
// Do not use it to authorise: without podInfoOnMount the same keys may come
// from the author of the volume attributes.
package podinfo

import (
	"cmp"
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
	KeyTokens         = "csi.storage.k8s.io/serviceAccount.tokens"
)

// Names of the files that show pod information to a workload.
const (
	FilePodName        = "pod.name"
	FilePodNamespace   = "pod.namespace"
	FilePodUID         = "pod.uid"
	FileServiceAccount = "serviceAccount.name"
	FileTokens         = "tokens"
)

// legacyPrefix is the prefix of the same keys in the design document (seed
// 002); it is read, never written.
const legacyPrefix = "csi.kubernetes.io/"

// Info is the pod for which a volume is published. The zero value means that
// the kubelet sent none.
type Info struct {
	Name           string
	Namespace      string
	UID            string
	ServiceAccount string
	// Ephemeral is true for an inline volume. A missing key
	// means persistent.
	Ephemeral bool
	// Tokens are those of the service account.
	Tokens Tokens
}

// Parse reads the volume context and the secrets of a request. Tokens come in
// the secrets where the CSIDriver object says serviceAccountTokenInSecrets,
// else in the context. A value of the ephemeral key that is no boolean is an
// error: to guess would lose data.
func Parse(volumeContext, secrets map[string]string) (Info, error) {
	info := Info{
		Name:           lookup(volumeContext, KeyPodName, "pod.name"),
		Namespace:      lookup(volumeContext, KeyPodNamespace, "pod.namespace"),
		UID:            lookup(volumeContext, KeyPodUID, "pod.uid"),
		ServiceAccount: lookup(volumeContext, KeyServiceAccount, "serviceAccount.name"),
		Tokens:         Tokens(cmp.Or(secrets[KeyTokens], volumeContext[KeyTokens])),
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

// Files are the information as contents of files by name. Empty ones are
// those that the kubelet does not send; they are to be removed.
func (i Info) Files() map[string]string {
	return map[string]string{
		FilePodName:        i.Name,
		FilePodNamespace:   i.Namespace,
		FilePodUID:         i.UID,
		FileServiceAccount: i.ServiceAccount,
		FileTokens:         string(i.Tokens),
	}
}

// Tokens are tokens of a service account, as the kubelet writes them: JSON with
// one object for each audience, of a token and the time at which it expires.
// Neither a log line nor a record shows them.
type Tokens string

// String says that tokens are there, not which.
func (t Tokens) String() string {
	if t == "" {
		return ""
	}
	return "***stripped***"
}

// GoString is String for %#v.
func (t Tokens) GoString() string { return strconv.Quote(t.String()) }

// MarshalText is String for JSON and for structured logs.
func (t Tokens) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func lookup(volumeContext map[string]string, key, legacy string) string {
	if value, found := volumeContext[key]; found {
		return value
	}
	return volumeContext[legacyPrefix+legacy]
}
