// Package kube talks to the Kubernetes API: a client for the few kinds that the
// Container Storage Interface needs, informers that keep only what is read, and
// secrets.
//
// It is made small on purpose. The usual typed clientset links every API group of
// Kubernetes, which costs a process about ten MiB before it does anything; here the
// scheme has three groups (core, storage.k8s.io and coordination.k8s.io) and one
// generic client serves all kinds. Objects travel as protobuf, all kinds share one
// HTTP connection pool.
//
// Informers strip managedFields always, and what else a component says it never reads.
// They are client-go's, with the objects of Kubernetes itself kept as protobuf, a third of the size or less, and
// decoded for each reader, which takes microseconds: List is not for hot paths.
// Objects that come out of an informer are slim, and may be shared: they must not be
// changed, and must not be sent back with Update, which would delete what was
// stripped. Write with Patch, or Get the object first.
//
// An informer of a kind that the component can do without (InformerOptions.AskAgain) makes few requests where
// the role does not allow to list or to watch it, or the server does not have it, and Unwatched says so: callers then
// read the objects that they need.
//
// Other kinds, such as custom resources, get the same methods by NewResource from a REST client
// of their group; kinds that several components read are added here.
package kube
